import threading
from typing import Any

import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.tracking import Store
from tune_speed.tracking.schema import Point
from tune_speed.tracking.writer import descriptions
from tune_speed.tracking.writer.runs import RunRef, StudyRuns

KEY = ("estimate", "t0000")


def open_runs(store: Store, *, search_id: str = "") -> StudyRuns:
    return StudyRuns.open(store, study="study", search_id=search_id, tags={})


def begin(runs: StudyRuns) -> RunRef:
    return runs.begin(KEY, params={}, start_ms=1000)


def test_more_than_mlflow_takes_at_once_arrives_whole(store: Store) -> None:
    runs = open_runs(store)
    ref = begin(runs)
    points = [Point("accuracy", i / 3000, 1000 + i, i) for i in range(3000)]
    params = {f"p{i}": "x" * 6000 for i in range(250)}  # 1.5 MB, where a request may have 1 MB.
    tags = {f"tag{i}": "y" * 5000 for i in range(150)}
    runs.write(ref, points=points, params=params, tags=tags)
    data = store.client.get_run(ref.run_id).data
    assert params.items() <= data.params.items() and tags.items() <= data.tags.items()
    assert len(store.client.get_metric_history(ref.run_id, "accuracy")) == 3000


def test_writing_twice_leaves_everything_once(store: Store) -> None:
    runs = open_runs(store)
    ref = begin(runs)
    points = [Point("accuracy", 0.5, 1000, 1), Point("accuracy", 0.5, 1000, 1)]
    for _ in range(2):
        runs.write(ref, points=points, params={"a": "1"}, tags={"b": "2"})
        runs.end(ref, "FINISHED")
    assert len(store.client.get_metric_history(ref.run_id, "accuracy")) == 1


def test_a_run_is_found_by_whoever_looks_next(store: Store) -> None:
    first = begin(open_runs(store))
    again = open_runs(store)
    assert again.known()[KEY].run_id == first.run_id
    assert begin(again).run_id == first.run_id
    assert KEY not in open_runs(store, search_id="another").known()


def test_a_run_whose_answer_was_lost_is_found_and_not_made_twice(store: Store) -> None:
    runs = open_runs(store)
    create_run = store.client.create_run

    def lose_the_answer(*arguments: Any, **settings: Any) -> None:
        create_run(*arguments, **settings)
        raise ConnectionError("lost")

    store.client.create_run = lose_the_answer
    with pytest.raises(ConnectionError):
        begin(runs)
    store.client.create_run = create_run
    begin(runs)
    assert len(store.client.search_runs([runs.experiment_id], "attributes.run_name = 't0000'")) == 1


@pytest.mark.parametrize(
    "there", ["", f"an older one\n\n{descriptions.OURS}", "mine: do not touch"]
)
def test_an_experiments_description_is_replaced_unless_somebody_changed_it(
    store: Store, there: str
) -> None:
    experiment_id = open_runs(store).experiment_id
    if there:
        store.client.set_experiment_tag(experiment_id, descriptions.NOTE, there)
    plan = descriptions.SearchPlan(
        study="study", workload={}, workload_name="w", searched={"a.b": "x"}
    )
    runs = StudyRuns.open(store, study="study", search_id="s", tags={}, plan=plan)
    note = store.client.get_experiment(experiment_id).tags[descriptions.NOTE]
    assert note == (there if there.startswith("mine") else descriptions.study_note(plan))
    assert store.client.get_run(runs.parent.run_id).data.tags["tune_speed.searched"] == "a.b"


def open_only(store: Store, search_id: str) -> StudyRuns:
    return StudyRuns.open(store, study="study", search_id=search_id, tags={}, is_only=True)


def test_a_second_search_of_a_name_is_refused_and_leaves_nothing(store: Store) -> None:
    first = open_only(store, "a")
    with pytest.raises(ConfigError, match=r"name of its own in MLflow.*running.*--set study=NAME"):
        open_only(store, "b")
    assert open_only(store, "a").parent.run_id == first.parent.run_id
    first.end(first.parent, "KILLED")
    assert [r.info.run_id for r in store.client.search_runs([first.experiment_id])] == [
        first.parent.run_id
    ]


def test_a_name_is_free_where_nothing_came_of_the_other_search(store: Store) -> None:
    first = open_only(store, "a")
    first.end(first.parent, "KILLED")
    second = open_only(store, "b")
    second.end(second.parent, "FINISHED")
    first.write(first.parent, points=[Point("trials", 1.0, 1000, 1)], tags={})
    with pytest.raises(ConfigError, match="1 trial finished, killed"):
        open_only(store, "c")


def test_of_two_that_begin_at_the_same_moment_one_goes_on(store: Store) -> None:
    gate = threading.Barrier(2)
    create_run = store.client.create_run

    def create_together(*arguments: Any, **settings: Any) -> Any:
        gate.wait(20)  # Both have seen that there is no other.
        return create_run(*arguments, **settings)

    opened: list[StudyRuns] = []
    refused: list[ConfigError] = []

    def begin_one(search_id: str) -> None:
        try:
            opened.append(open_only(store, search_id))
        except ConfigError as error:
            refused.append(error)

    there = open_runs(store, search_id="")  # The experiment is there.
    there.end(there.parent, "FINISHED")
    store.client.create_run = create_together
    threads = [threading.Thread(target=begin_one, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(opened) >= 1 and len(opened) + len(refused) == 2
    running = store.client.search_runs([opened[0].experiment_id], "attributes.status = 'RUNNING'")
    assert len(running) == len(opened) == 1


def test_another_attempt_continues_only_where_nothing_would_contradict_or_double() -> None:
    params = {"a": "1", "b": "2"}
    interrupted = RunRef("r", 0, "KILLED", params)
    assert interrupted.fits(params) and interrupted.fits({"a": "1"}) and interrupted.fits({})
    assert not interrupted.fits({"a": "2"})
    assert not RunRef("r", 0, "KILLED", params, has_points=True).fits(params)
    assert not RunRef("r", 0, "RUNNING", params, has_points=True).fits(params)
    assert RunRef("r", 0, "FINISHED", params, has_points=True).fits(params)


@pytest.mark.parametrize(
    ("status", "is_complete", "has_ended"),
    [
        ("FINISHED", True, True),
        ("FAILED", True, True),
        ("KILLED", False, True),
        ("RUNNING", False, False),
    ],
)
def test_run_is_complete_once_its_outcome_is_delivered(
    status: str, is_complete: bool, has_ended: bool
) -> None:
    ref = RunRef("r", 0, status)
    assert (ref.is_complete, ref.has_ended) == (is_complete, has_ended)


@pytest.mark.parametrize(
    ("workload", "name", "source"),
    [
        ({"dataset": {"name": "digits", "root": "data"}}, "digits", '"root": "data"'),
        ({"function": "train_mlp"}, "own data", '"name": "own data"'),
    ],
)
def test_the_data_of_a_search_stand_beside_its_run_once(
    store: Store, workload: dict[str, Any], name: str, source: str
) -> None:
    plan = descriptions.SearchPlan(study="study", workload=workload, workload_name="own data")
    for _ in range(2):  # As a search that resumes does.
        runs = StudyRuns.open(
            store, study="study", search_id="", tags={"workload_hash": "0123abcd"}, plan=plan
        )
    (found,) = store.client.get_run(runs.parent.run_id).inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest) == (name, "0123abcd")
    assert source in found.dataset.source and found.tags[0].value == "training"
