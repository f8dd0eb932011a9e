import asyncio
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from helpers.reporting.server import wait_for
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tune_speed.reporting.server import helm, run
from tune_speed.reporting.server.run import Guard, listen

HEAD = b"GET /page HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = HEAD + b"\r\n"
OWN = b"Host: localhost\r\nOrigin: http://localhost\r\nX-Tune-Speed: 1\r\n"
SEND = b"POST /sent HTTP/1.1\r\n" + OWN + b"Content-Type: application/json\r\n"
UNSENT_BODY = SEND + b"Content-Length: 999\r\n\r\n{"
LARGE = 64 * 2**20
"""More than the buffers of a system hold."""


async def page(request: Request) -> Response:
    return PlainTextResponse("read")


async def large(request: Request) -> Response:
    return PlainTextResponse(LARGE * "x")


async def sent(request: Request) -> Response:
    return PlainTextResponse(str(await helm.fields_of(request)))


async def stream(request: Request) -> Response:
    async def moments() -> AsyncIterator[str]:
        while True:
            yield ":\n\n"
            await asyncio.sleep(0.05)

    return StreamingResponse(moments(), media_type="text/event-stream")


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(run, "SEND_WITHIN_S", 0.4)
    monkeypatch.setattr(run, "READ_WITHIN_S", 0.8)
    monkeypatch.setattr(run, "LOOK_EVERY_S", 0.05)
    routes = [Route(f"/{each.__name__}", each) for each in (page, large, stream)]
    routes.append(Route("/sent", sent, methods=["POST"]))
    with listen("127.0.0.1", 0) as listener:
        port = int(listener.getsockname()[1])
        guard = Guard(Starlette(routes=routes), token=None, is_loopback=True, port=port)
        server = run.Server(guard, asyncio.Event())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        wait_for(lambda: server.started)
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join(timeout=20)
            assert not thread.is_alive()


@contextmanager
def client(port: int, request: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        yield connection


def answer(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def drip(connection: socket.socket, text: bytes) -> float:
    """Sends a byte now and then; returns after how long it was closed [s]."""
    began_s = time.monotonic()
    for byte in text:
        connection.sendall(bytes([byte]))
        connection.settimeout(0.02)
        try:
            while connection.recv(65_536):
                pass
            break
        except TimeoutError:
            continue
        except ConnectionResetError:
            break
    return time.monotonic() - began_s


@pytest.mark.parametrize(
    ("begun", "rest"),
    [
        (b"", b""),
        (b"", HEAD + 999 * b"X: y\r\n"),
        (UNSENT_BODY, 999 * b" "),
        (UNSENT_BODY.replace(b"/sent", b"/none"), 999 * b" "),
        (WHOLE, HEAD + 999 * b"X: y\r\n"),
    ],
    ids=["silent", "head", "body", "refused", "second"],
)
def test_a_client_that_does_not_send_its_request_is_closed(
    port: int, begun: bytes, rest: bytes
) -> None:
    with client(port, begun) as connection:
        if rest:
            assert drip(connection, rest) < 8
        else:
            assert answer(connection) == b""


def test_a_client_that_does_not_read_its_answer_is_closed(port: int) -> None:
    with client(port, WHOLE.replace(b"page", b"large")) as connection:
        time.sleep(2.0)
        assert 0 < len(answer(connection)) < LARGE
    with client(port, WHOLE.replace(b"page", b"large")) as connection:
        time.sleep(0.5)
        assert len(answer(connection)) > LARGE, "one that begins to read in time gets all of it"


def test_streams_stay_open_and_connections_that_ask_again_are_served(port: int) -> None:
    with client(port, WHOLE.replace(b"page", b"stream")) as live, client(port) as other:
        until_s = time.monotonic() + 1.5
        num_moments = 0
        while time.monotonic() < until_s:
            num_moments += live.recv(65_536).count(b":\n\n")
            assert is_served(other)
        assert num_moments > 9


def test_beyond_a_number_of_connections_each_is_refused_at_once(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(run, "SEND_WITHIN_S", 60.0)
    with client(port) as first, client(port), ExitStack() as last:
        last.enter_context(client(port))
        for _ in range(4):
            with client(port) as refused:
                assert answer(refused).startswith(b"HTTP/1.1 503 ")
        assert is_served(first)
        last.close()
        wait_for(lambda: is_another_served(port))


def test_a_client_that_goes_away_while_it_sends_leaves_no_traceback(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "uvicorn.error"):
        with client(port, UNSENT_BODY):
            pass
        assert is_another_served(port)
        time.sleep(0.2)
    assert caplog.records == []


def is_served(connection: socket.socket) -> bool:
    connection.sendall(WHOLE)
    said = b""
    while not said.endswith(b"read") and (more := connection.recv(65_536)):
        said += more
    return b" 200 " in said


def is_another_served(port: int) -> bool:
    with client(port) as connection, suppress(ConnectionResetError):
        return is_served(connection)
    return False
