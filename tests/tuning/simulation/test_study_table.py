import itertools
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_evaluation, make_record, make_run
from helpers.tuning.spaces import TREES
from hypothesis import given

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.curve import crossing
from tune_speed.tuning.simulation.recorded import RecordedBenchmark, write_table
from tune_speed.tuning.simulation.study_table import derived_tree, table_from_records


def trial(
    number: int, status: Status = Status.REACHED, *, mode: str = "fixed_length", epochs: float = 3.0
) -> TrialRecord:
    """A trial of three evaluations, that of the untrained model among them."""
    evaluations = (
        make_evaluation(step=0, train_s=0.0, accuracy=0.1),
        make_evaluation(step=10, train_s=1.0 + number, accuracy=0.5),
        make_evaluation(step=20, train_s=2.0 + 2 * number, accuracy=0.95),
    )
    run = make_run(status).model_copy(update={"evaluations": evaluations})
    record = make_record(f"t{number:04d}", status, params={"lr": 0.1 * (number + 1)}, runs=(run,))
    workload = {**record.workload, "mode": mode, "max_train_s": 60.0}
    return record.model_copy(update={"workload": workload, "recipe": {"epochs": epochs}})


FIVES = range(5)
FIVE = [trial(number) for number in FIVES]


def table(records: list[TrialRecord]) -> Any:
    return table_from_records(records, space=None, command="made")


def test_written_table_replays_the_study(tmp_path: Path) -> None:
    rows, metadata, *_ = table(FIVE)
    assert [row["step"] for row in rows] == [[10, 20]] * 5  # Without the untrained model.
    write_table(tmp_path / "study.parquet", rows, metadata)
    benchmark = RecordedBenchmark.load(tmp_path / "study.parquet")
    for record in FIVE:
        curve = benchmark.curve(record.params)
        assert curve.end_s == record.runs[0].evaluations[-1].train_s
        assert crossing(curve, target=benchmark.target, mode=benchmark.mode) == 1
    assert (benchmark.target, benchmark.mode) == (0.9, "fixed_length")


def test_trials_that_were_stopped_or_ran_elsewhere_are_left_out_and_counted() -> None:
    more = [trial(5, Status.CAPPED), trial(6, Status.FAILED), trial(7, Status.CAPPED)]
    other = trial(8).model_copy(update={"device": "NVIDIA H200"})
    made = table([*FIVE, *more, other])
    assert len(made.rows) == 5
    left_out = {"stopped before their end": 2, "failed": 1, "on another device or workload": 1}
    assert made.left_out == left_out


def test_stopped_trials_of_anytime_keep_their_planned_end() -> None:
    records = [trial(n, Status.CAPPED if n == 4 else Status.MISSED, mode="anytime") for n in FIVES]
    made = table(records)
    assert [row["status"] for row in made.rows] == ["done"] * 5
    # Two epochs took 2 + 2 x 4 seconds, so three take 15.
    assert made.rows[4]["planned_s"] == pytest.approx(15.0)


def test_no_run_is_planned_past_the_time_limit() -> None:
    records = [trial(number, mode="anytime", epochs=3000.0) for number in FIVES]
    assert [row["planned_s"] for row in table(records).rows] == [60.0] * 5


def test_diverged_and_oom_trials_are_kept_as_such() -> None:
    oom = make_record("t0006", Status.OOM, params={"lr": 0.2})
    oom = oom.model_copy(update={"workload": FIVE[0].workload})
    made = table([*FIVE, trial(5, Status.DIVERGED), oom])
    assert [row["status"] for row in made.rows[5:]] == ["diverged", "oom"]


def test_too_few_trials_say_what_was_left_out() -> None:
    with pytest.raises(ConfigError, match=r"there are 4 usable ones \(left out: 1 failed\)"):
        table([*FIVE[:4], trial(4, Status.FAILED)])
    with pytest.raises(ConfigError, match="there are 0 usable ones"):
        table([])


def test_numbers_that_come_back_are_choices_and_others_ranges() -> None:
    configurations = [{"lr": 0.01 * 2**n, "batch": [64, 128][n % 2], "up": 1.0 + n} for n in FIVES]
    assert derived_tree([*configurations, *configurations[:1]]) == {
        "lr": {"low": 0.01, "high": 0.16, "log": True},
        "batch": {"choices": [64, 128]},
        "up": {"low": 1.0, "high": 5.0},
    }


@given(TREES)
def test_derived_space_holds_every_configuration(tree: dict[str, Any]) -> None:
    configurations = list(itertools.islice(SearchSpace.from_tree(tree).corners(limit=20), 20))
    space = SearchSpace.from_tree(derived_tree(configurations))
    assert all(space.read(params) == params for params in configurations)
