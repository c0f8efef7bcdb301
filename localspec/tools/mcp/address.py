"""A server at an address: the SDK's streamable HTTP, with limits on what the server may send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.life import LARGEST_MESSAGE, Allowance, Life

_CONNECT_S = 15.0
_LINES = (20_000.0, 2_000.0)  # of streams of events, at once and a second: reading them takes time
_STREAMS = (5.0, 1.0)  # GET requests at once and a second: the SDK asks again as soon as a server wants


@asynccontextmanager
async def http_streams(entry: ServerEntry, life: Life) -> AsyncGenerator[tuple[Any, Any], None]:
    """Yield the streams for a session with a server at an address."""
    headers = dict(entry.headers) | {"accept-encoding": "identity"}  # what unpacks could be any size
    timeout = httpx2.Timeout(_CONNECT_S, read=entry.call_seconds)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, transport=_Limited(life)) as client,
        streamable_http_client(entry.url, http_client=client, max_sse_event_size=LARGEST_MESSAGE) as streams,
    ):
        yield streams


class _Limited(httpx2.AsyncBaseTransport):
    """HTTP that ends a connection whose server sends too much, and knows the last error."""

    def __init__(self, life: Life) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self._life = life
        self._streams = Allowance(*_STREAMS)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and (wait_s := self._streams.take(1)):
            await asyncio.sleep(wait_s)
        response = await self._inner.handle_async_request(request)
        if response.status_code >= httpx2.codes.BAD_REQUEST and request.method == "POST":
            self._life.status = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            self._life.end("sent compressed data that was not asked for")
            raise httpx2.ReadError("compressed data")
        kind = response.headers.get("content-type", "")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Counted(response.stream, self._life, is_paced=kind.startswith("text/event-stream")),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Counted(httpx2.AsyncByteStream):
    """The body of a response, which ends with the connection if there is too much of it."""

    def __init__(self, inner: httpx2.AsyncByteStream, life: Life, *, is_paced: bool) -> None:
        self._inner = inner
        self._life = life
        self._lines = Allowance(*_LINES) if is_paced else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            if not self._life.may_receive(len(data)):
                raise httpx2.ReadError("too much")
            if self._lines is not None and (wait_s := self._lines.take(data.count(b"\n"))):
                await asyncio.sleep(wait_s)
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()
