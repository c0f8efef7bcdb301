"""How Tab completes the resources of MCP servers that a prompt names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from localspec.chat.attachments import MAX_COMPLETIONS, Completion
from localspec.chat.references import ENDS_WORD
from localspec.tools.mcp.descriptions import shown_line

if TYPE_CHECKING:
    from localspec.tools.mcp.listings import McpResource
    from localspec.tools.mcp.server import McpServer

_SHOWN = 60  # characters
_NOWHERE = 10**6  # after every place in a text


def complete_resource(prefix: str, servers: Mapping[str, McpServer]) -> tuple[Completion, ...]:
    """Return completions of a server's name, or behind its colon of its resources; that starts the server."""
    typed = prefix.removeprefix('"')
    owner, colon, wanted = typed.partition(":")
    if not colon:
        return tuple(
            Completion(f"{name}:", f"{name}:", "resources of an MCP server")
            for name in servers
            if name.casefold().startswith(owner.casefold())
        )
    name = next((each for each in servers if each.casefold() == owner.casefold()), None)
    if name is None:
        return ()
    known = servers[name].known_resources()
    if known.answer is None:
        state = known.problem or f"asking {name} for its resources"
        return (Completion(prefix, state, is_notice=True),)
    if not known.answer:
        return (Completion(prefix, f"{name} has no resources", is_notice=True),)
    return tuple(_offers(name, known.answer, wanted.casefold()))[:MAX_COMPLETIONS]


def _offers(server: str, listed: Sequence[McpResource], wanted: str) -> Iterator[Completion]:
    """Yield the resources whose URI or name begins with a text, then those that contain it."""
    places = {each: min(_place(each.uri, wanted), _place(each.name, wanted)) for each in listed}
    for limit in (range(1), range(1, _NOWHERE)):
        for each, place in places.items():
            insert = _written(server, each.uri)
            if place in limit and insert is not None:
                about = " ".join(filter(None, (each.name, each.mime_type, each.description)))
                yield Completion(insert, shown_line(each.uri, _SHOWN), shown_line(about, _SHOWN))


def _place(text: str, wanted: str) -> int:
    found = text.casefold().find(wanted)
    return _NOWHERE if found < 0 else found


def _written(server: str, uri: str) -> str | None:
    """Return a resource as a prompt names it; None for a URI that cannot be written."""
    name = f"{server}:{uri}"
    if not name.isprintable() or '"' in name:
        return None
    return f'"{name}"' if " " in name or name[-1] in ENDS_WORD else name
