import re
import signal
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tune_speed.core.errors import ServiceError
from tune_speed.tuning.ray import compat, health
from tune_speed.tuning.ray.health import Unreachable

SOON_S = 60.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Looks often, and heeds Ctrl-C where the tests were started in the background too."""
    monkeypatch.setattr(health, "LOOK_EVERY_S", 0.005)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def dies(monkeypatch: pytest.MonkeyPatch, *causes: str | None) -> None:
    found = iter(causes)
    monkeypatch.setattr(health, "_death_check", lambda: lambda: next(found, None))


def test_search_whose_cluster_died_ends_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    dies(monkeypatch, None, None, "the raylet was killed")
    said = r"^the raylet was killed\. Finished trials are kept"
    with pytest.raises(ServiceError, match=said), health.ended_with_ray():
        threading.Event().wait(SOON_S)
        raise AssertionError("nothing ended it")


def test_search_that_ends_by_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    dies(monkeypatch)
    before = threading.active_count()
    with health.ended_with_ray():
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_ctrl_c_of_the_user_and_errors_pass_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    dies(monkeypatch)
    for error in (KeyboardInterrupt, ZeroDivisionError):
        with pytest.raises(error), health.ended_with_ray():
            raise error


def test_search_that_does_not_heed_ctrl_c_ends_with_its_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    codes, ended = list[int](), threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    dies(monkeypatch, "no GCS")
    monkeypatch.setattr(health, "GRACE_S", 0.01)
    monkeypatch.setattr(health, "os", SimpleNamespace(kill=lambda *_: None, getpid=int, _exit=end))
    with pytest.raises(ServiceError, match="no GCS"), health.ended_with_ray():
        assert ended.wait(SOON_S)
    assert codes == [ServiceError.exit_code]
    assert capfd.readouterr().err.startswith("error: no GCS. Finished trials are kept")


class Node:
    gcs_address = "[fe80::1]:6379"

    def __init__(self, *dead: tuple[str, int]) -> None:
        self._dead = dead

    def dead_processes(self) -> list[tuple[str, Any]]:
        return [(name, SimpleNamespace(returncode=code)) for name, code in self._dead]


@pytest.mark.parametrize(
    ("dead", "cause"),
    [
        ([], None),
        ([("log_monitor", 1)], None),
        ([("raylet", -signal.SIGKILL)], "Ray's raylet, .*, was killed by signal 9$"),
        ([("monitor", 1), ("gcs_server", 2)], "GCS, .*, ended with exit code 2$"),
        ([("raylet", 0)], "ended with exit code 0$"),
    ],
)
def test_cluster_is_dead_without_a_process(dead: list[tuple[str, int]], cause: str | None) -> None:
    found = health._cause_of(Node(*dead))
    assert (found is None) == (cause is None)
    assert cause is None or re.search(cause, str(found))


def test_joined_cluster_is_watched_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "is_client", lambda: False)
    monkeypatch.setattr(compat, "own_node", lambda: Node(("raylet", 1)))
    check = health._death_check()
    assert check.__self__._place == ("fe80::1", 6379)  # type: ignore[attr-defined]
    for is_client, node in ((True, Node(("raylet", 1))), (False, None)):
        monkeypatch.setattr(compat, "is_client", lambda is_client=is_client: is_client)
        monkeypatch.setattr(compat, "own_node", lambda node=node: node)
        assert health._death_check()() is None


def test_address_where_somebody_listens_is_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        unreachable = Unreachable(*server.getsockname(), limit_s=0.0)
        assert unreachable.cause() is None


def test_address_is_given_up_only_after_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    assert Unreachable(host, port, limit_s=60.0).cause() is None
    cause = Unreachable(host, port, limit_s=0.0).cause()
    assert cause is not None and f"has not answered at 127.0.0.1:{port}" in cause


def test_answer_in_between_starts_the_count_anew() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        unreachable = Unreachable(host, port, limit_s=60.0)
    assert unreachable.cause() is None
    assert unreachable._since_s is not None
    with socket.create_server((host, port)):
        assert unreachable.cause() is None
    assert unreachable._since_s is None
