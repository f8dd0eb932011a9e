"""Who may read: a browser that asked this machine by its own name, or that has the token."""

import hmac
import ipaddress
import re
from contextlib import suppress
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        sent = request.cookies.get(self._cookie) or _bearer(request.headers)
        return None if self._fits(sent) else _denied()

    def _fits(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _welcome(self, request: Request) -> Response:
        """Returns the way to the same page without the token, which no history is to have."""
        rest = [(k, v) for k, v in parse_qsl(request.url.query) if k != TOKEN]
        # One slash alone begins it: two would name another host.
        path = "/" + request.url.path.lstrip("/")
        to = f"{path}?{urlencode(rest)}" if rest else path
        answer = RedirectResponse(to, 303)
        given = self._token or ""
        answer.set_cookie(self._cookie, given, httponly=True, samesite="lax", path="/")
        return answer


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_own(headers: Headers) -> bool:
    """Returns whether a page of this server sent it, by all that a browser says of that."""
    host = headers.get("host", "")
    # The scheme is left out: a proxy before this server may speak https.
    is_same = host != "" and headers.get("origin", "").partition("://")[2] == host
    is_same = is_same and headers.get("sec-fetch-site", "same-origin") == "same-origin"
    return is_same and SENT_BY in headers


def _denied() -> Response:
    return PlainTextResponse(NO_TOKEN, 401, headers={"www-authenticate": "Bearer"})
