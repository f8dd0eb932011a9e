import threading
import time
from collections.abc import Callable, Iterator

import pytest
from helpers.making import make_evaluation, make_record
from helpers.tracking.loopback import tcp_proxy
from helpers.tracking.servers import Postgresql, postgresql, why_no_postgresql
from helpers.tracking.stores import check_each_once

from tune_speed.core.errors import ServiceError
from tune_speed.tracking import Store, Tracker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_no_postgresql() is not None, reason=str(why_no_postgresql())),
]

CURVE = [0, 1, 2, 10]


@pytest.fixture(scope="module")
def database() -> Iterator[Postgresql]:
    with postgresql() as server:
        server.run("postgres", "CREATE DATABASE direct")
        yield server


def track(uri: str, study: str) -> Tracker:
    return Tracker(Store(uri), study=study, study_tags={}, linger_s=0.05)


def run_trial(tracker: Tracker, trial_id: str) -> None:
    tracker.trial_started(trial_id=trial_id, params={}, recipe={"batch_size": 32})
    for step in range(3):
        evaluation = make_evaluation(step=step, train_s=step / 10)
        tracker.trial_evaluated(trial_id=trial_id, evaluation=evaluation)
    tracker.trial_finished(record=make_record(trial_id))


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.05)


def test_a_killed_database_costs_nothing(database: Postgresql) -> None:
    """Trials run, while it is killed and started again: each must be there once."""
    uri = database.uri("direct")
    tracker = track(uri, "study")
    for i in range(8):
        run_trial(tracker, f"t{i:04d}")
        if i == 4:
            wait_for(lambda: len(tracker.expected) < 4)  # In the midst of deliveries.
            database.kill()
        if i == 6:
            wait_for(lambda: tracker.trouble)
            database.start()
    assert tracker.close(timeout_s=60) == () and tracker.trouble is None
    trials = dict.fromkeys((f"t{i:04d}" for i in range(8)), "FINISHED")
    for run in check_each_once(uri, "study", trials):
        assert run.steps() == CURVE, run.trial_id


def test_commits_whose_answer_is_lost_leave_nothing_twice(database: Postgresql) -> None:
    """A commit that was made, and looks as if it had failed: the worst moment to lose a network."""
    uri = database.uri("direct")
    lock, commits = threading.Lock(), [0]

    def every_third_commit(asked: bytes, answered: bytes) -> bool:
        with lock:
            commits[0] += b"COMMIT" in asked
            return b"COMMIT" in asked and commits[0] % 3 == 0

    with tcp_proxy(database.port) as proxy:
        through = uri.replace(f":{database.port}/", f":{proxy.port}/")
        tracker = track(through, "commits")
        proxy.cut_if = every_third_commit
        for i in range(4):
            run_trial(tracker, f"t{i:04d}")
        wait_for(lambda: proxy.num_cut >= 5 or not tracker.expected)
        proxy.cut_if = lambda asked, answered: False
        assert tracker.close(timeout_s=60) == ()
    assert proxy.num_cut >= 3
    trials = dict.fromkeys((f"t{i:04d}" for i in range(4)), "FINISHED")
    for run in check_each_once(uri, "commits", trials):
        assert run.steps() == CURVE, run.trial_id


def test_a_frozen_database_ends_no_search_late(database: Postgresql) -> None:
    tracker = track(database.uri("direct"), "frozen")
    wait_for(lambda: not tracker.expected)
    database.freeze()
    try:
        run_trial(tracker, "t0000")
        start_s = time.monotonic()
        undelivered = tracker.close(timeout_s=2)
        assert time.monotonic() - start_s < 10
        assert [trial.trial_id for trial in undelivered] == ["t0000"]
    finally:
        database.thaw()


def test_a_wrong_password_is_refused_without_being_shown(database: Postgresql) -> None:
    with pytest.raises(ServiceError) as caught:
        Store(database.uri("direct", password="wr0ng-one")).create()
    message = str(caught.value)
    assert "does not let us in: the login is refused. Check user and password" in message
    assert f"tester:***@127.0.0.1:{database.port}" in message and "wr0ng" not in message
