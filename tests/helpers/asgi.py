"""Requests to an ASGI application in this process, without a network."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

Result = TypeVar("Result")


class Answer(NamedTuple):
    """What an application answered."""

    code: int
    headers: dict[str, str]
    text: str


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Returns what is awaited, in a thread: a browser's tests leave a loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class Client:
    """Asks one application, in one event loop."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._runner, self._thread = asyncio.Runner(), ThreadPoolExecutor(1)

    def close(self) -> None:
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._thread.submit(self._runner.run, work).result()

    def get(self, target: str, **headers: str) -> Answer:
        """Returns the answer to GET `target`, a path as a browser sends it."""
        return self.run(ask(self.app, target, headers=headers))

    def together(self, targets: list[str]) -> list[Answer]:
        """Returns the answers to requests that are made at the same time."""

        async def gathered() -> list[Answer]:
            return await asyncio.gather(*(ask(self.app, target) for target in targets))

        return self.run(gathered())


async def ask(
    app: Any,
    target: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    heard: Callable[[str], None] | None = None,
) -> Answer:
    """Returns an application's whole answer; `heard` gets each piece of it as it comes."""
    raw, _, query = target.partition("?")
    sent = {
        "host": "127.0.0.1:8420",
        **{k.replace("_", "-"): v for k, v in (headers or {}).items()},
    }
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(k.lower().encode(), v.encode()) for k, v in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8420),
    }
    code, found, said = 0, dict[str, str](), list[str]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal code
        if message["type"] == "http.response.start":
            code = message["status"]
            found.update({k.decode(): v.decode() for k, v in message["headers"]})
        else:
            said.append(message.get("body", b"").decode())
            if heard is not None:
                heard(said[-1])

    await app(scope, receive, send)
    return Answer(code, found, "".join(said))
