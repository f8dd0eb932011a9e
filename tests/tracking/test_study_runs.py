from typing import Any

import pytest

from tune_speed.tracking import notes
from tune_speed.tracking.schema import Point
from tune_speed.tracking.study_runs import RunRef, StudyRuns

KEY = ("estimate", "t0000")


def open_runs(client: Any, *, search_id: str = "") -> StudyRuns:
    return StudyRuns.open(client, study="study", search_id=search_id, tags={})


def begin(runs: StudyRuns) -> RunRef:
    return runs.begin(KEY, params={}, start_ms=1000)


def test_more_than_mlflow_takes_at_once_arrives_whole(client: Any) -> None:
    runs = open_runs(client)
    ref = begin(runs)
    points = [Point("accuracy", i / 3000, 1000 + i, i) for i in range(3000)]
    params = {f"p{i}": "x" * 6000 for i in range(250)}  # 1.5 MB, where a request may have 1 MB.
    tags = {f"tag{i}": "y" * 5000 for i in range(150)}
    runs.write(ref, points=points, params=params, tags=tags)
    data = client.get_run(ref.run_id).data
    assert params.items() <= data.params.items() and tags.items() <= data.tags.items()
    assert len(client.get_metric_history(ref.run_id, "accuracy")) == 3000


def test_writing_twice_leaves_everything_once(client: Any) -> None:
    runs = open_runs(client)
    ref = begin(runs)
    points = [Point("accuracy", 0.5, 1000, 1), Point("accuracy", 0.5, 1000, 1)]
    for _ in range(2):
        runs.write(ref, points=points, params={"a": "1"}, tags={"b": "2"})
        runs.end(ref, "FINISHED")
    assert len(client.get_metric_history(ref.run_id, "accuracy")) == 1


def test_a_run_is_found_by_whoever_looks_next(client: Any) -> None:
    first = begin(open_runs(client))
    again = open_runs(client)
    assert again.known()[KEY].run_id == first.run_id
    assert begin(again).run_id == first.run_id
    assert KEY not in open_runs(client, search_id="another").known()


def test_a_run_whose_answer_was_lost_is_found_and_not_made_twice(client: Any) -> None:
    runs = open_runs(client)
    create_run = client.create_run

    def lose_the_answer(*arguments: Any, **settings: Any) -> None:
        create_run(*arguments, **settings)
        raise ConnectionError("lost")

    client.create_run = lose_the_answer
    with pytest.raises(ConnectionError):
        begin(runs)
    client.create_run = create_run
    begin(runs)
    assert len(client.search_runs([runs.experiment_id], "attributes.run_name = 't0000'")) == 1


@pytest.mark.parametrize("there", ["", f"an older one\n\n{notes.OURS}", "mine: do not touch"])
def test_an_experiments_description_is_replaced_unless_somebody_changed_it(
    client: Any, there: str
) -> None:
    experiment_id = open_runs(client).experiment_id
    if there:
        client.set_experiment_tag(experiment_id, notes.NOTE, there)
    plan = notes.SearchPlan(study="study", workload={}, workload_name="w", searched={"a.b": "x"})
    runs = StudyRuns.open(client, study="study", search_id="s", tags={}, plan=plan)
    note = client.get_experiment(experiment_id).tags[notes.NOTE]
    assert note == (there if there.startswith("mine") else notes.study_note(plan))
    assert client.get_run(runs.parent_id).data.tags["tune_speed.searched"] == "a.b"
