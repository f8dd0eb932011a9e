"""A server for the live page, until Ctrl-C."""

import asyncio
import errno
import ipaddress
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from urllib.parse import quote

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from tune_speed.core.errors import ConfigError
from tune_speed.reporting.page.study_page import RecipeYaml
from tune_speed.reporting.server.app import MOST_STREAMS, LivePages
from tune_speed.reporting.server.guard import Guard
from tune_speed.reporting.server.helm import Helm
from tune_speed.tracking.reader.studies import list_studies
from tune_speed.tracking.store.store import open_store

BACKLOG = 128
# Where every address of the machine is listened to, none of which is meant.
ANY = ("0.0.0.0", "::")


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; port 0: on a free one. Raises: ConfigError."""
    try:
        family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise _no_host(host, error) from error
    try:
        return socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise _no_host(host, error) from error
        is_used = error.errno == errno.EADDRINUSE
        why = "another program listens there" if is_used else "this user may not have it"
        raise ConfigError(
            f"--port must be one that is free, but got {port} on {host}: {why}. Give another one,"
            " or 0 for any."
        ) from error


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def address_of(listener: socket.socket, *, token: str | None) -> str:
    host, port = listener.getsockname()[:2]
    name = socket.gethostname() if host in ANY else f"[{host}]" if ":" in host else host
    query = "" if token is None else f"?token={quote(token, safe='')}"
    return f"http://{name}:{port}/{query}"


def _no_host(host: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"--host must be a name or an address of this machine, but got {host!r}: {error}. Try"
        " 127.0.0.1, which only this machine reaches, or 0.0.0.0 for all its networks."
    )


TOKEN_VARIABLE = "TUNE_SPEED_TOKEN"
# For answers that are being sent when it ends.
GRACE_S = 0.1
SEND_WITHIN_S, READ_WITHIN_S, LOOK_EVERY_S = 10.0, 300.0, 1.0
"""For a whole request, and for an answer, which may be large [s]."""
MOST_CONNECTIONS = 2 * MOST_STREAMS
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def serve(
    uri: str,
    *,
    host: str,
    port: int,
    recipe_yaml: RecipeYaml,
    announce: Callable[[str], None],
    helm: Helm | None = None,
) -> None:
    """Serves the live pages of a store until Ctrl-C; `announce` gets the address to open.

    Viewers from elsewhere need a token: $TUNE_SPEED_TOKEN, or a new one; on loopback where that is
    set.

    Raises: ConfigError if host or port is not to be had; ServiceError or StorageError without the
        store; KeyboardInterrupt on Ctrl-C.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token and not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"${TOKEN_VARIABLE} must hold printable ASCII characters, as HTTP's headers do, but got"
            " others. Leave it unset for a new token."
        )
    with listen(host, port) as listener:
        list_studies(uri)
        if not token:
            token = None if is_loopback(listener) else secrets.token_urlsafe(24)
        # Importing MLflow takes two seconds, which the first viewer would wait.
        open_store(uri, create=False)
        announce(address_of(listener, token=token))
        server = server_of(listener, uri, token=token, recipe_yaml=recipe_yaml, helm=helm)
        server.run(sockets=[listener])


def server_of(
    listener: socket.socket,
    uri: str,
    *,
    token: str | None,
    recipe_yaml: RecipeYaml,
    helm: Helm | None = None,
) -> "Server":
    ending = asyncio.Event()
    pages = LivePages(uri, recipe_yaml=recipe_yaml, ending=ending, helm=helm).app()
    is_private, port = is_loopback(listener), listener.getsockname()[1]
    return Server(Guard(pages, token=token, is_loopback=is_private, port=port), ending)


class _Connection(H11Protocol):
    """Is closed where there are too many, or its client is too slow."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._known, self._since_s = self.cycle, time.monotonic()
        self._end_if_slow()
        if len(self.connections) > MOST_CONNECTIONS:
            transport.write(REFUSAL)
            transport.close()

    def _end_if_slow(self) -> None:
        """Looks every second whether a request has not been sent, or an answer read, in time."""
        cycle, now_s = self.cycle, time.monotonic()
        is_unread = self.transport.get_write_buffer_size() > 0
        is_asked = cycle is not None and not (cycle.more_body or cycle.response_complete)
        if cycle is not self._known or (is_asked and not is_unread):
            self._known, self._since_s = cycle, now_s
        if now_s - self._since_s > (READ_WITHIN_S if is_unread else SEND_WITHIN_S):
            self.transport.abort()
        elif self in self.connections:
            self.loop.call_later(LOOK_EVERY_S, self._end_if_slow)


class Server(uvicorn.Server):
    """Ends at once, and the streams that are open with it."""

    def __init__(self, app: ASGIApp, ending: asyncio.Event) -> None:
        config = uvicorn.Config(
            app,
            http=_Connection,
            loop="asyncio",
            ws="none",
            lifespan="off",
            # A request is no news; what breaks has a traceback.
            access_log=False,
            log_level="error",
            server_header=False,
            proxy_headers=False,
        )
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends streams, and drops who still waits for a figure: both would be waited for."""
        self._ending.set()
        # What is cut off is no fault.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await asyncio.sleep(GRACE_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        self.force_exit = True
        await super().shutdown(sockets)
