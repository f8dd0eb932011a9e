"""`tune-speed serve` as a user starts and ends it."""

import http.client
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.command import TUNE_SPEED, environment, start
from helpers.reporting.pages import ordinary
from helpers.tracking.stores import store_of


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    ready = select.poll()
    ready.register(process.stdout, select.POLLIN)
    assert ready.poll(60_000), "it must print where it listens"
    return process.stdout.readline()


class Answer(NamedTuple):
    code: int
    headers: Mapping[str, str]
    text: str


def asked(port: int, path: str, **headers: str) -> Answer:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        # A stream has no end.
        is_stream = answer.getheader("content-type", "").startswith("text/event-stream")
        return Answer(answer.status, answer.headers, "" if is_stream else answer.read().decode())


def begun(port: int, path: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


def test_a_port_in_use_is_told(call: Callable[..., Any], tmp_path: Path) -> None:
    store_of([], folder=tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = call("serve", "--port", str(port), folder=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert f"--port must be one that is free, but got {port}" in done.err
    assert "0 for any" in done.err


def test_without_a_store_it_does_not_start(call: Callable[..., Any], tmp_path: Path) -> None:
    done = call("serve", "--port", "0", folder=tmp_path)
    assert (done.code, done.out) == (4, "")
    assert "tune-speed search digits_quickstart" in done.err


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once_though_a_stream_is_open(tmp_path: Path) -> None:
    store_of(ordinary(), folder=tmp_path)
    process = start("serve", "--port", "0", folder=tmp_path)
    try:
        address = first_line(process).split()[-1]
        assert address.startswith("http://127.0.0.1:")
        port = int(address.rstrip("/").rpartition(":")[2])
        # A forest that grows meanwhile is not waited for either.
        figure = "/studies/study/parts/part-1-figure-parallel"
        with begun(port, "/studies/study/events") as stream, begun(port, figure):
            said = b""
            while b"data: {" not in said:
                said += stream.recv(65536)
            began_s = time.monotonic()
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=20)
            assert time.monotonic() - began_s < 3.0
    finally:
        process.kill()
    assert process.returncode == 130
    assert out == "" and "searches are not touched" in err
    assert "Traceback" not in err and "ERROR" not in err


@pytest.mark.slow
def test_other_machines_need_the_token_that_is_printed(tmp_path: Path) -> None:
    store_of(ordinary(), folder=tmp_path)
    process = start("serve", "--host", "0.0.0.0", "--port", "0", folder=tmp_path)
    try:
        base, _, token = first_line(process).split()[-1].partition("?token=")
        port = int(base.rstrip("/").rpartition(":")[2])
        assert len(token) >= 32
        for path in ("/", "/studies/study", "/studies/study/events", "/parts/studies"):
            assert asked(port, path).code == 401
        welcome = asked(port, f"/studies/study?token={token}")
        assert (welcome.code, welcome.headers["location"]) == (303, "/studies/study")
        cookie = welcome.headers["set-cookie"].partition(";")[0]
        page = asked(port, "/studies/study", Cookie=cookie)
        assert page.code == 200 and token not in page.text
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.slow
def test_a_token_of_ones_own_is_needed_on_loopback_too(tmp_path: Path) -> None:
    store_of(ordinary(), folder=tmp_path)
    process = subprocess.Popen(
        [TUNE_SPEED, "serve", "--port", "0", "--json"],
        cwd=tmp_path,
        env={**environment(tmp_path), "TUNE_SPEED_TOKEN": "mine"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and first_line(process) == "{\n"
        address = process.stdout.readline().strip()
        assert address.startswith('"url": "http://127.0.0.1:') and address.endswith('/?token=mine"')
        port = int(address.partition("/?token=mine")[0].rpartition(":")[2])
        assert asked(port, "/").code == 401
        assert asked(port, "/", Authorization="Bearer mine").code == 200
    finally:
        process.terminate()
        process.communicate(timeout=20)
