"""The HTTP server: its limits, and its patience with clients that are slow or send nothing."""

from __future__ import annotations

import asyncio
import logging

import h11
from starlette.applications import Starlette
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

LARGEST_HEADER = 64 * 2**10  # bytes
MOST_CONNECTIONS = 512  # under the 1,024 descriptors that a process usually has
HEADER_S = 10.0  # for the head of a request to arrive
KEEP_ALIVE_S = 60  # for the next request; many clients find out late that a connection was closed
DRAIN_S = 30  # for answers under way when the server is to end


def http_server(application: Starlette) -> Server:
    """Return a server that logs nothing and, told to end, lets what is being answered end first."""
    logging.getLogger("asyncio").addHandler(logging.NullHandler())  # it would tell of clients that leave
    config = Config(
        application,
        http=_Impatient,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=LARGEST_HEADER,
        timeout_graceful_shutdown=DRAIN_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return Server(config)


class _Impatient(H11Protocol):
    """Closes a connection on which no request comes; uvicorn waits for ever for the rest of one's head."""

    _closes: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.close()
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel()

    def _look(self) -> None:
        """Wait for a head that is not complete, from its first byte on."""
        if self.conn.their_state is not h11.IDLE:
            self._cancel()
        elif self._closes is None:
            self._closes = self.loop.call_later(HEADER_S, self.transport.close)

    def _cancel(self) -> None:
        if self._closes is not None:
            self._closes.cancel()
            self._closes = None
