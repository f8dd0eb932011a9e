import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tune_speed.core.errors import ServiceError
from tune_speed.core.records import Status
from tune_speed.tracking import Query, Store, Tracker, find_trial, find_trials, list_studies

DRIVER = """
    import sys, time
    sys.path.insert(0, {tests!r})
    from helpers.making import make_evaluation, make_record
    from tune_speed.tracking import Tracker, Store

    tracker = Tracker(Store({uri!r}), study="study", study_tags={{}}, linger_s=0.02)
    for i in range({num_trials}):
        trial_id = f"t{{i:04d}}"
        tracker.trial_started(trial_id=trial_id, params={{}}, recipe={{"batch_size": 32}})
        for step in range(5):
            evaluation = make_evaluation(step=step, train_s=step / 10)
            tracker.trial_evaluated(trial_id=trial_id, evaluation=evaluation)
            time.sleep(0.01)
        tracker.trial_finished(record=make_record(trial_id, time_s=100.0 - i))
    tracker.trial_started(trial_id="t9999", params={{}}, recipe={{}})
    print("waiting", flush=True)
    sys.stdin.readline()
    print(tracker.close(timeout_s=60))
"""


def start_driver(uri: str, *, num_trials: int) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[2])
    code = textwrap.dedent(DRIVER).format(tests=tests, uri=uri, num_trials=num_trials)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def wait_for_trials(uri: str, num: int) -> list[int]:
    seen = [0]
    deadline = time.monotonic() + 300
    while seen[-1] < num:
        assert time.monotonic() < deadline, seen
        try:
            seen.append(len(find_trials(Store(uri), Query(study="study"))))
        except ServiceError as error:
            assert "there is no" in str(error)
    return seen


@pytest.mark.slow
def test_a_study_is_read_while_it_is_written_and_a_killed_driver_is_made_good_by_the_next(
    uri: str, client: Any
) -> None:
    driver = start_driver(uri, num_trials=8)
    seen = wait_for_trials(uri, 8)
    (study,) = list_studies(Store(uri))
    assert seen == sorted(seen) and len(set(seen)) > 2, "nothing was seen on the way"
    assert study.is_running
    assert find_trial(Store(uri), "study/t0007").has_curve
    assert driver.stdout is not None and driver.stdout.readline() == "waiting\n"
    experiment = client.get_experiment_by_name("study").experiment_id
    while len(client.search_runs([experiment])) < 10:  # t9999 comes last.
        time.sleep(0.02)
    records = [trial.record for trial in find_trials(Store(uri))]
    os.kill(driver.pid, signal.SIGKILL)
    assert driver.communicate(timeout=60) == ("", "")
    tracker = Tracker(Store(uri), study="study", study_tags={}, linger_s=0.02)
    tracker.reconcile({record.trial_id: record for record in records})
    assert tracker.close(timeout_s=60) == ()
    runs = client.search_runs([tracker.experiment_id])
    status = {run.info.run_name: run.info.status for run in runs}
    ended = dict.fromkeys(("study", *(f"t{i:04}" for i in range(8))), "FINISHED")
    assert len(runs) == 10 and status == {**ended, "t9999": "KILLED"}
    (study,) = list_studies(Store(uri))
    assert study.num_trials == {Status.REACHED: 8} and not study.is_running
