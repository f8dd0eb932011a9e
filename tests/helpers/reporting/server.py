"""Requests to an ASGI application in this process, without a network."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from helpers.reporting.pages import trained

from tune_speed.cli.watch import recipe_text
from tune_speed.core.records import Evaluation, Status, TrialRecord
from tune_speed.reporting.server.run import address_of, listen, server_of
from tune_speed.tracking import Store, Tracker

Result = TypeVar("Result")


class Answer(NamedTuple):
    code: int
    headers: dict[str, str]
    text: str


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Returns what is awaited, in a thread: a browser's tests leave a loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class Client:
    def __init__(self, app: Any) -> None:
        self.app = app
        self._runner, self._thread = asyncio.Runner(), ThreadPoolExecutor(1)

    def close(self) -> None:
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._thread.submit(self._runner.run, work).result()

    def get(self, target: str, **headers: str) -> Answer:
        return self.run(ask(self.app, target, headers=headers))

    def together(self, targets: list[str]) -> list[Answer]:
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


# --- A server of live pages in a thread, and a study that runs meanwhile

RECIPE = {"batch_size": 64}
TAGS = {"workload": "digits", "target": "accuracy ≥ 0.9", "mode": "fixed_length", "trials": "20"}


@contextmanager
def serving(uri: str, *, port: int = 0) -> Iterator[str]:
    """Serves a store's pages; yields their address, without a slash at its end."""
    with listen("127.0.0.1", port) as listener:
        server = server_of(listener, Store(uri), token=None, recipe_yaml=recipe_text)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield address_of(listener, token=None).rstrip("/")
        finally:
            server.should_exit = True
            thread.join(timeout=20)
            assert not thread.is_alive(), "the server must end though streams are open"


class Search:
    def __init__(self, uri: str, *, study: str = "study") -> None:
        self.study = study
        self.tracker = Tracker(
            Store(uri), study=study, study_tags=TAGS, parent_kind="search", linger_s=0.02
        )

    def start(self, trial_id: str) -> None:
        self.tracker.trial_started(trial_id=trial_id, params={"batch_size": 64}, recipe=RECIPE)

    def evaluated(self, trial_id: str, evaluation: Evaluation) -> None:
        self.tracker.trial_evaluated(trial_id=trial_id, evaluation=evaluation)

    def finish(
        self, trial_id: str, *, time_s: float = 1.0, status: Status = Status.REACHED
    ) -> None:
        self.put(trained(trial_id, status, time_s=time_s, study=self.study))

    def put(self, record: TrialRecord) -> None:
        self.tracker.trial_finished(record=record)

    def end(self) -> None:
        assert self.tracker.close(timeout_s=30) == ()


def wait_for(holds: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    """Waits until it holds; fails if that takes longer."""
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until, "it does not come to hold"
        time.sleep(0.05)
