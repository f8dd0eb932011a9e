"""A server for the live page, until Ctrl-C, and who may read: this machine, or a token's holder."""

import asyncio
import errno
import hmac
import ipaddress
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import parse_qsl, quote, urlencode

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tune_speed.core.errors import ConfigError
from tune_speed.reporting.page.site import RecipeYaml
from tune_speed.reporting.server.app import MOST_STREAMS, LivePages
from tune_speed.reporting.server.helm import Helm
from tune_speed.tracking.reader.studies import list_studies
from tune_speed.tracking.store.store import Store

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
    store: Store,
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
        list_studies(store)
        if not token:
            token = None if is_loopback(listener) else secrets.token_urlsafe(24)
        # Importing MLflow takes two seconds, which the first viewer would wait.
        _ = store.client
        announce(address_of(listener, token=token))
        server = server_of(listener, store, token=token, recipe_yaml=recipe_yaml, helm=helm)
        server.run(sockets=[listener])


def server_of(
    listener: socket.socket,
    store: Store,
    *,
    token: str | None,
    recipe_yaml: RecipeYaml,
    helm: Helm | None = None,
) -> "Server":
    ending = asyncio.Event()
    pages = LivePages(store, recipe_yaml=recipe_yaml, ending=ending, helm=helm).app()
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


TOKEN = "token"
HOST = re.compile(r"(\[[0-9a-fA-F]*:[0-9a-fA-F:.]*\]|[0-9a-zA-Z.]+)(:[0-9]{1,5})?")
"""An IPv6 address, or else a name or an IPv4 address, with or without a port."""
NO_TOKEN = (
    "This page needs the token that `tune-speed serve` printed: open the address that it printed,"
    " or send the header `Authorization: Bearer TOKEN`."
)
NOT_LOCAL = (
    "This server listens on this machine alone, and must be asked as localhost, 127.0.0.1 or [::1]:"
    " a page elsewhere may have sent you here under a name of its own."
)
NOT_OWN = (
    "Only a page of this server may send something: reload the page, or use `tune-speed steer`."
)
SENT_BY = "x-tune-speed"
"""A header of the page's requests: a form elsewhere cannot send one, nor can a script unasked."""
HEADERS = {
    "cache-control": "no-store",
    # The page's own policy, in its head, does not cover frames.
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def is_local(host: str) -> bool:
    found = HOST.fullmatch(host)
    name = found[1].strip("[]").lower() if found else ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """Lets requests to `app` pass, with headers on its answers."""

    def __init__(self, app: ASGIApp, *, token: str | None, is_loopback: bool, port: int) -> None:
        """`token`: what viewers must have; None: they need none."""
        self._app, self._token, self._is_loopback = app, token, is_loopback
        # Browsers give a cookie of one port to all ports of a machine.
        self._cookie = f"tune_speed_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self._refusal(Request(scope))
        with suppress(ClientDisconnect):
            await (refused or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        # A name that an attacker's domain server maps to 127.0.0.1 is in the Host header.
        if self._is_loopback and not is_local(request.headers.get("host", "")):
            return PlainTextResponse(NOT_LOCAL, 403)
        denied = None if self._token is None else self._token_refusal(request)
        if denied is not None or request.method in ("GET", "HEAD"):
            return denied
        return None if _is_own(request.headers) else PlainTextResponse(NOT_OWN, 403)

    def _token_refusal(self, request: Request) -> Response | None:
        given = request.query_params.get(TOKEN)
        if given is not None:
            return self._welcome(request) if self._fits(given) else _denied()
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        sent = request.cookies.get(self._cookie) or token.strip() * (scheme.lower() == "bearer")
        return None if self._fits(sent) else _denied()

    def _fits(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _welcome(self, request: Request) -> Response:
        rest = [(k, v) for k, v in parse_qsl(request.url.query) if k != TOKEN]
        # One slash alone begins it: two would name another host.
        path = "/" + request.url.path.lstrip("/")
        to = f"{path}?{urlencode(rest)}" if rest else path
        answer = RedirectResponse(to, 303)
        given = self._token or ""
        answer.set_cookie(self._cookie, given, httponly=True, samesite="lax", path="/")
        return answer


def _is_own(headers: Headers) -> bool:
    host = headers.get("host", "")
    # The scheme is left out: a proxy before this server may speak https.
    is_same = host != "" and headers.get("origin", "").partition("://")[2] == host
    is_same = is_same and headers.get("sec-fetch-site", "same-origin") == "same-origin"
    return is_same and SENT_BY in headers


def _denied() -> Response:
    return PlainTextResponse(NO_TOKEN, 401, headers={"www-authenticate": "Bearer"})
