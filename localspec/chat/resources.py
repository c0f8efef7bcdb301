"""Resources of MCP servers that a prompt names: `@SERVER:URI`, or a resource's name instead of its URI."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from threading import Event
from typing import TYPE_CHECKING

from localspec import units
from localspec.chat.attached_file import UnattachableError
from localspec.chat.messages import RESOURCE, Attachment
from localspec.errors import LocalSpecError, UserError
from localspec.tools.mcp.descriptions import shown_line

if TYPE_CHECKING:
    from localspec.tools.mcp.contents import ResourceContent
    from localspec.tools.mcp.listings import McpResource
    from localspec.tools.mcp.server import McpServer

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S")
_MAY_NAME = re.compile(r"@\"?[\w-]+:[^\s\"]")
_LONGEST = 500  # characters of the URI of an attachment


@dataclass(frozen=True, slots=True)
class AttachedResource:
    """A resource to attach, or nothing as long as it is not known; and a note, or none."""

    file: Attachment | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of some servers, or the `problem` for which it is not known which there are.

    Without a `stop`, nothing is waited for: a prompt is still being written.
    """

    servers: Mapping[str, McpServer] = field(default_factory=dict)
    stop: Event | None = None
    problem: str = ""

    @property
    def names(self) -> Collection[str] | None:
        """Return the names of the servers; None if they are not known."""
        return None if self.problem else self.servers

    def read(self, name: str, limit: int) -> AttachedResource:
        """Return the text of a resource; raises UserError for what cannot be attached, and Cancelled."""
        if self.problem:
            raise UserError(self.problem)
        owner, _, wanted = name.partition(":")
        server_name = next(each for each in self.servers if each.casefold() == owner.casefold())
        server = self.servers[server_name]
        uri = self._uri(server_name, server, wanted)
        content = None if uri is None else self._content(server, uri)
        if uri is None or content is None:
            return AttachedResource(None, f"@{name} is read when this is sent")
        text = content.text
        blobs = ", ".join(content.blobs)
        if not text.strip():
            problem, why = ("is not text", blobs) if blobs else ("is empty", "empty")
            hint = "pictures and other such data cannot be attached" * bool(blobs)
            raise UnattachableError(f"`{name}` {problem}{f': {blobs}' if blobs else ''}", hint, why)
        if (size := len(text.encode())) > limit:
            most = units.size(limit)
            problem = f"`{name}` has {units.size(size)}, more than the {most} that can be attached"
            raise UnattachableError(problem, "raise max_kib in config.toml", units.size(size))
        note = f"{name} is attached without {blobs}, which is not text" if blobs else ""
        address = f"{RESOURCE}{server_name}/{shown_line(uri, _LONGEST)}"
        return AttachedResource(Attachment(address, text), note)

    def _uri(self, server_name: str, server: McpServer, wanted: str) -> str | None:
        """Return the URI of a resource by its URI or name; None as long as it is not known."""
        known = server.known_resources(asks=self.stop is None)
        listed = known.answer or ()
        if (uri := _found(listed, wanted)) is not None:
            return uri
        if self.stop is None:
            if known.problem:
                raise UserError(known.problem)
            if known.is_asked or known.answer is None or _ADDRESS.match(wanted):
                return None
        else:
            listed = server.resources(self.stop)
            uri = _found(listed, wanted)
            if uri is None and _ADDRESS.match(wanted):
                uri = wanted  # servers need not list all that they have
        if uri is None:
            names = {shown_line(name): None for each in listed for name in (each.name, each.uri)}
            close = get_close_matches(wanted, names, n=1)
            meant = f"did you mean `@{server_name}:{close[0]}`?" if close else ""
            raise UserError(f"{server_name} has no resource `{wanted}`", meant)
        return uri

    def _content(self, server: McpServer, uri: str) -> ResourceContent | None:
        known = server.known_resource(uri, asks=self.stop is None)
        if known.answer is not None and not known.is_asked:
            return known.answer
        if self.stop is not None:
            return server.resource(uri, self.stop)
        if known.problem:
            raise UserError(known.problem)
        return None


NO_RESOURCES = Resources()


def resources_named_in(
    text: str, servers: Callable[[], Mapping[str, McpServer]], stop: Event | None = None
) -> Resources:
    """Return the resources that a text may name; `servers` may raise UserError for a mistake in mcp.json."""
    if _MAY_NAME.search(text) is None:
        return NO_RESOURCES
    try:
        return Resources(servers(), stop)
    except LocalSpecError as error:
        return Resources(stop=stop, problem=str(error))


def _found(listed: Iterable[McpResource], wanted: str) -> str | None:
    """Return the URI that a text is, or the name of; raises UserError for the name of several."""
    uris = {each.uri for each in listed if wanted in (each.uri, each.name)}
    if wanted in uris:
        return wanted
    if len(uris) > 1:
        raise UserError(f"several resources are called `{wanted}`", "name one by its URI")
    return next(iter(uris), None)
