from types import SimpleNamespace
from typing import Any

import pytest

from tune_speed.tracking import Store, schema
from tune_speed.tracking.schema import Point
from tune_speed.tracking.writer.runs import RunRef, StudyRuns, _batches

KEY = ("estimate", "t0000")


def items(*lengths: int) -> list[Any]:
    return [SimpleNamespace(key="k", value="v" * (length - 1)) for length in lengths]


def sizes(lengths: list[int], size: int = 10) -> list[int]:
    return [len(batch) for batch in _batches(items(*lengths), size)]


def test_requests_hold_at_most_so_many_items_and_so_many_characters() -> None:
    assert sizes([]) == []
    assert sizes([1] * 20) == [10, 10]
    assert sizes([1] * 21) == [10, 10, 1]
    assert sizes([200_000, 200_000, 1]) == [2, 1]
    assert sizes([200_000, 200_001, 199_999]) == [1, 2]
    # What is too long by itself is sent alone, for the server to refuse.
    assert sizes([1, 400_001, 1]) == [1, 1, 1]
    assert sizes([400_000]) == [1]


class Counted:
    def __init__(self) -> None:
        self.requests: list[tuple[int, int, int]] = []

    def log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        assert run_id == "r"
        self.requests.append((len(metrics), len(params), len(tags)))


def test_requests_are_as_few_as_their_limits_allow() -> None:
    client: Any = Counted()
    runs = StudyRuns(client, experiment_id="0", parent_id="p", tags={})
    ref = RunRef("r", 0, "RUNNING")
    points = [Point("a", float(i), i, i) for i in range(1601)]
    names = {str(i): "x" for i in range(101)}
    runs.write(ref, points=[*points, points[0]], params=names, tags={"a": "b"})
    assert client.requests == [(800, 100, 1), (800, 1, 0), (1, 0, 0)]
    assert ref.has_points
    bare = RunRef("r", 0, "RUNNING")
    runs.write(bare, params={"a": "b"})
    assert not bare.has_points and client.requests[3:] == [(0, 1, 0)]
    runs.write(bare)
    assert len(client.requests) == 4


def open_runs(store: Store, search_id: str = "") -> StudyRuns:
    return StudyRuns.open(store, study="study", search_id=search_id, tags={"workload": "w"})


def test_run_of_a_trial_has_its_start_name_parent_and_tags(store: Store) -> None:
    runs = open_runs(store)
    ref = runs.begin(KEY, params={}, start_ms=1234)
    assert (ref.start_ms, ref.status, ref.has_points) == (1234, "RUNNING", False)
    run = store.client.get_run(ref.run_id)
    assert (run.info.run_name, run.info.start_time) == ("t0000", 1234)
    expected = schema.start_tags("t0000", kind="estimate") | schema.study_tag_entries(
        "study", {"workload": "w"}
    )
    assert expected.items() <= run.data.tags.items()
    assert run.data.tags["mlflow.parentRunId"] == runs.parent.run_id
    assert runs.known()[KEY] is ref and runs.begin(KEY, params={}, start_ms=9) is ref
    assert runs.parent.status == "RUNNING"


def test_run_that_ended_runs_again_and_one_that_contradicts_goes_to_the_trash(store: Store) -> None:
    runs = open_runs(store)
    ref = runs.begin(KEY, params={}, start_ms=1)
    runs.write(ref, params={"a": "1"})
    runs.end(ref, "KILLED")
    assert ref.status == "KILLED"
    again = open_runs(store)
    back = again.begin(KEY, params={"a": "1"}, start_ms=2)
    assert back.run_id == ref.run_id and back.status == "RUNNING"
    assert store.client.get_run(ref.run_id).info.status == "RUNNING"
    other = again.begin(KEY, params={"a": "2"}, start_ms=3)
    assert other.run_id != ref.run_id and other.start_ms == 3
    assert store.client.get_run(ref.run_id).info.lifecycle_stage == "deleted"


@pytest.mark.parametrize("is_found", [False, True])
def test_parameters_of_a_complete_run_stay_in_the_store(store: Store, is_found: bool) -> None:
    """Those of 20,000 runs would take more memory than all else that is known of them."""
    runs = open_runs(store)
    ref = runs.begin(KEY, params={}, start_ms=1)
    runs.write(ref, params={"a": "1"}, tags={"a": "{}"})
    runs.end(ref, "FINISHED")
    again = open_runs(store) if is_found else runs
    assert again.known()[KEY].params is None
    same = again.begin(KEY, params={"a": "1"}, start_ms=2)
    assert same.run_id == ref.run_id and same.params == {"a": "1"}
    again.end(same, "FINISHED")
    assert again.begin(KEY, params={"a": "2"}, start_ms=3).run_id != ref.run_id


@pytest.mark.parametrize("is_first_fuller", [True, False])
def test_of_two_runs_of_a_trial_the_fuller_stays(store: Store, is_first_fuller: bool) -> None:
    runs = open_runs(store)
    tags = {"mlflow.parentRunId": runs.parent.run_id}
    tags |= schema.start_tags("t0000", kind="estimate")
    pair = [store.client.create_run("1", tags=tags, start_time=ms).info.run_id for ms in (10, 20)]
    full = pair[0 if is_first_fuller else 1]
    store.client.set_terminated(full, "FINISHED")
    store.client.log_metric(full, "accuracy", 0.5)
    found = runs.known()[KEY]
    assert found.run_id == full and found.has_points
    stages = [store.client.get_run(run_id).info.lifecycle_stage for run_id in pair]
    assert stages == ["active" if run_id == full else "deleted" for run_id in pair]


def test_files_are_stored_as_they_are(store: Store, tmp_path: Any) -> None:
    runs = open_runs(store)
    ref = runs.begin(KEY, params={}, start_ms=1)
    runs.write_files(ref, {"a.txt": "größer", "b.txt": ""})
    assert {file.path for file in store.client.list_artifacts(ref.run_id)} == {"a.txt", "b.txt"}
    path = store.client.download_artifacts(ref.run_id, "a.txt", str(tmp_path))
    with open(path, encoding="utf-8") as file:
        assert file.read() == "größer"
