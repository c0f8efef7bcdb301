"""Results of servers as they came: the SDK refuses a whole list of tools for one that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

Result = dict[str, Any]
AS_IT_CAME = TypeAdapter(Result)
"""The type of results to ask a session for; `original` takes the server's own out of them."""
_KEY = "localspec/original"
_EMPTY: Mapping[str, Result] = {  # valid in all versions of the protocol
    "tools/list": {"tools": []},
    "tools/call": {"content": []},
    "prompts/list": {"prompts": []},
    "prompts/get": {"messages": []},
    "resources/list": {"resources": []},
    "resources/read": {"contents": []},
}
_OFFERS = ("tools", "prompts", "resources")
_OF_ALL_RESULTS = ("resultType", "ttlMs", "cacheScope", "_meta")


class KeepingDispatcher:
    """The SDK's dispatcher, which shows the session an empty result and the original beside it.

    So the SDK checks nothing of what servers get wrong, runs no patterns of theirs over their results, and
    everything is read by one tolerant reader.
    """

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - the SDK's protocol is generic and provisional
        self._inner = inner

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: Any = None,  # noqa: ANN401
    ) -> Result:
        """Send a request, and return its result as the session may see it."""
        result: Result = await self._inner.send_raw_request(method, params, opts)
        if method == "initialize":
            return _whole_greeting(result)
        if method not in _EMPTY or result.get("resultType") == "input_required":
            return result
        kept = {key: result[key] for key in _OF_ALL_RESULTS if key in result}
        return _EMPTY[method] | kept | {_KEY: result}

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: Any = None,  # noqa: ANN401
    ) -> None:
        """Send a notification."""
        await self._inner.notify(method, params, opts)

    async def run(self, *handlers: Any, **options: Any) -> None:  # noqa: ANN401
        """Receive messages until the connection ends."""
        await self._inner.run(*handlers, **options)


def _whole_greeting(result: Result) -> Result:
    """Return the greeting of a server with all that the SDK insists on, and the kinds of its offers."""
    offers = result.get("capabilities")
    about = result.get("serverInfo")
    kinds = offers if isinstance(offers, dict) else {}
    names = about if isinstance(about, dict) else {}
    return {
        "protocolVersion": result.get("protocolVersion"),
        "capabilities": {kind: {} for kind in _OFFERS if kinds.get(kind) not in (None, False)},
        "serverInfo": {key: str(names.get(key) or "") for key in ("name", "version")},
    }


def original(result: Result) -> Result | None:
    """Return a result as the server sent it; None if the server wants something from the client first."""
    return result.get(_KEY)
