import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest
from helpers.tracking.stores import check_each_once

from tune_speed.tracking import Store, list_studies

pytestmark = pytest.mark.slow

NUM_DRIVERS, NUM_TRIALS = 2, 4
HELD_S = 4.0
"""Longer than MLflow waits for a lock here."""
DRIVER = """
    import sys
    sys.path.insert(0, {tests!r})
    from helpers.making import make_evaluation, make_record
    from sqlalchemy import Engine, event
    from tune_speed.tracking import Tracker, Store

    @event.listens_for(Engine, "before_cursor_execute", retval=True)
    def wait_less(connection, cursor, statement, parameters, *_):
        return statement.replace("busy_timeout = 20000", "busy_timeout = 1500"), parameters

    study = f"study-{{sys.argv[1]}}"
    sys.stdin.readline()
    tracker = Tracker(Store({uri!r}), study=study, study_tags={{}}, linger_s=0.02, is_only=True)
    print("opened", flush=True)
    sys.stdin.readline()
    for i in range({num_trials}):
        trial_id = f"t{{i:04d}}"
        tracker.trial_started(trial_id=trial_id, params={{}}, recipe={{"batch_size": 32}})
        for step in range(5):
            evaluation = make_evaluation(step=step, train_s=step / 10)
            tracker.trial_evaluated(trial_id=trial_id, evaluation=evaluation)
        tracker.trial_finished(record=make_record(trial_id, time_s=100.0 - i))
    print(tracker.close(timeout_s=240), flush=True)
"""


def start_driver(uri: str, number: int) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[2])
    code = textwrap.dedent(DRIVER).format(tests=tests, uri=uri, num_trials=NUM_TRIALS)
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, str(number)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def tell_all(drivers: list[subprocess.Popen[str]]) -> None:
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.write("\n")
        driver.stdin.flush()


def test_drivers_open_a_fresh_store_and_write_to_it_at_once(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    drivers = [start_driver(uri, i) for i in range(NUM_DRIVERS)]
    try:
        tell_all(drivers)
        for driver in drivers:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "opened\n", driver.communicate(timeout=30)
        with closing(sqlite3.connect(tmp_path / "mlflow.db")) as stranger:
            stranger.execute("BEGIN IMMEDIATE")
            tell_all(drivers)
            time.sleep(HELD_S)
            assert list_studies(Store(uri))[0].num_trials == {}, "no process could write"
        ended = [driver.communicate(timeout=300) for driver in drivers]
    finally:
        for driver in drivers:
            driver.kill()
    assert ended == [("()\n", "")] * NUM_DRIVERS
    trials = dict.fromkeys((f"t{i:04d}" for i in range(NUM_TRIALS)), "FINISHED")
    for number in range(NUM_DRIVERS):
        for run in check_each_once(uri, f"study-{number}", trials):
            assert run.steps() == [0, 1, 2, 3, 4, 10]
    names = {path.name for path in tmp_path.iterdir()} - {"mlflow.db-wal", "mlflow.db-shm"}
    assert names == {"mlflow.db", "mlartifacts"}, "a lock or half a store was left"
