"""Frames over a real store with two studies, two devices, misses and a certified trial."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.imports import imported
from helpers.making import make_evaluation, make_record, make_run
from helpers.tracking.stores import store_of

import tune_speed
from tune_speed.api.results import COLUMNS, Results
from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.tracking.columns import COLUMNS as OF_TRIALS

CPU, GPU = "cpu (1 threads, test)", "NVIDIA H200"
BOARD = ["workload", "workload_hash", "protocol_version", "device", "kind"]


def record(number: int, status: Status = Status.REACHED, **fields: Any) -> TrialRecord:
    optimizer = ("sgd", "adamw")[number % 2]
    chosen = {"optimizer": optimizer, f"optimizer.{optimizer}.lr": 0.1 * (number + 1)}
    recipe = {"optimizer": {optimizer: {"lr": 0.1 * (number + 1)}}, "batch_size": 32 + number}
    made = make_record(f"t{number:04d}", status, params=chosen, **fields)
    return made.model_copy(update={"recipe": recipe})


def records() -> Iterator[TrialRecord]:
    for number, time_s in enumerate([4.0, 2.0, 2.5]):
        yield record(number, time_s=time_s, study="on-cpu", device=CPU)
    yield record(3, Status.MISSED, study="on-cpu", device=CPU)
    yield record(0, time_s=0.5, study="on-gpu", device=GPU)
    yield record(4, time_s=3.0, study="on-gpu", device=CPU)
    runs = tuple(make_run(time_s=3.0 + i / 10, seed=i) for i in range(6))
    curve = (make_evaluation(step=5, train_s=1.0), make_evaluation(step=10, train_s=3.0))
    runs = (*runs[:5], runs[5].model_copy(update={"evaluations": curve}))
    yield record(0, study="on-cpu", device=CPU, runs=runs, kind="certified")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(store_of(records(), folder=tmp_path_factory.mktemp("results")))


@pytest.fixture(scope="module")
def frames(results: Results) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    full_and_empty = {
        "best": (results.best(), results.best(workload="nothing")),
        "trials": (results.trials("on-cpu"), results.trials("on-cpu", where="n > 99")),
        "studies": (results.studies(), results.studies().head(0)),
        "curves": (results.curves("on-cpu/t0000"), results.curves([])),
    }
    return full_and_empty


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_and_their_types_are_the_documented_ones_with_and_without_rows(
    name: str, frames: dict[str, tuple[pd.DataFrame, pd.DataFrame]]
) -> None:
    documented = {column: each.dtype for column, each in COLUMNS[name].items()}
    full, empty = frames[name]
    assert len(full) > 0 and len(empty) == 0
    for frame in (full, empty):
        found = frame.dtypes.astype(str).to_dict()
        assert {k: v for k, v in found.items() if not k.startswith("params.")} == documented


@pytest.mark.parametrize("name", COLUMNS)
def test_help_says_what_each_column_is(name: str) -> None:
    text = str(getattr(Results, name).__doc__)
    for column, each in COLUMNS[name].items():
        assert f"    {column} " in text and f"{each.about} ({each.dtype})" in text
        assert len(each.about) > 8 and "\n" not in each.about


def test_a_store_without_studies_gives_a_frame_without_rows(tmp_path: Path) -> None:
    results = Results(store_of([], folder=tmp_path))
    assert list(results.studies().columns) == list(COLUMNS["studies"])
    assert results.studies().dtypes.astype(str).to_dict() == {
        name: column.dtype for name, column in COLUMNS["studies"].items()
    }
    with pytest.raises(ServiceError, match=r"there is no study in .* yet"):
        results.best()


def test_ranks_count_within_a_board_only(results: Results) -> None:
    best = results.best()
    assert set(best.device) == {CPU, GPU}
    for _, board in best.groupby(BOARD):
        assert board["rank"].tolist() == board["rank"].sort_values().tolist()
        assert board["rank"].iloc[0] == 1
        assert board.expected_s.is_monotonic_increasing
    cpu = best[(best.device == CPU) & (best.kind == "estimate")]
    assert cpu.trial_id.tolist() == ["t0001", "t0002", "t0004", "t0000"]
    assert cpu.study.tolist() == ["on-cpu", "on-cpu", "on-gpu", "on-cpu"]
    assert set(cpu.trials) == {5} and set(cpu.reached) == {4}


@pytest.mark.parametrize(
    ("asked", "trials"),
    [
        ({"n": 1}, ["t0000", "t0000", "t0001"]),
        ({"device": "h200"}, ["t0000"]),
        ({"study": "on-gpu"}, ["t0000", "t0004"]),
        ({"kind": "certified"}, ["t0000"]),
        ({"kind": "estimate", "n": 1}, ["t0000", "t0001"]),
        ({"where": "optimizer=sgd and lr>0.2"}, ["t0002", "t0004"]),
        ({"where": "status=missed"}, []),
        ({"where": "batch_size>=34", "n": 1}, ["t0002"]),
    ],
)
def test_best_takes_what_is_asked_for(
    results: Results, asked: dict[str, Any], trials: list[str]
) -> None:
    assert sorted(results.best(**asked).trial_id) == trials


def test_filtered_boards_say_so_and_count_what_fits(results: Results) -> None:
    best = results.best(where="optimizer = adamw")
    assert best.trial_id.tolist() == ["t0001"]
    assert best["where"].tolist() == ["optimizer = adamw"]
    assert (best.trials.tolist(), best.reached.tolist()) == ([2], [1])


def test_searched_parameters_have_columns_of_their_own(results: Results) -> None:
    trials = results.trials("on-cpu", kind="estimate").set_index("trial_id")
    assert trials["params.optimizer"].to_dict()["t0001"] == "adamw"
    assert trials["params.optimizer.adamw.lr"].dtype == "float64"
    assert trials.loc["t0001", "params.optimizer.adamw.lr"] == pytest.approx(0.2)
    assert trials["params.optimizer.sgd.lr"].isna().to_dict() == {
        **{"t0001": True, "t0002": False},
        **{"t0000": False, "t0003": True},
    }


def test_trials_come_board_by_board_fastest_first_and_misses_last(results: Results) -> None:
    trials = results.trials("on-cpu")
    assert trials.kind.tolist() == ["certified", *["estimate"] * 4]
    assert trials.trial_id.tolist()[1:] == ["t0001", "t0002", "t0000", "t0003"]
    assert trials.time_to_target_s.isna().tolist() == [False, False, False, False, True]
    assert trials.n.tolist() == [6, 1, 1, 1, 1]


def test_a_filter_and_a_mask_over_its_columns_take_the_same_trials(results: Results) -> None:
    trials = results.trials("on-cpu")
    mask = (trials.status == "reached") & (trials.time_to_target_s < 3.9)
    filtered = results.trials("on-cpu", where="status=reached and time_to_target_s<3.9")
    assert filtered.run_id.tolist() == trials[mask].run_id.tolist() != []
    assert set(OF_TRIALS) < set(trials.columns)


def test_curves_have_a_row_for_each_evaluation_of_each_seed(results: Results) -> None:
    curve = results.curves("on-cpu/t0000@certified")
    assert curve.seed.tolist() == [0, 1, 2, 3, 4, 5, 5]
    assert curve.step.tolist()[-2:] == [5, 10]
    assert curve.train_s.tolist()[-2:] == [1.0, 3.0]
    assert curve.has_curve.all()


def test_curves_take_a_name_a_run_id_and_a_column_of_them(results: Results) -> None:
    run_ids = results.trials("on-cpu", kind="estimate").run_id
    assert results.curves(run_ids).run_id.unique().tolist() == run_ids.tolist()
    by_name, by_id = results.curves("on-cpu/t0001"), results.curves(run_ids[0][:8])
    pd.testing.assert_frame_equal(by_name, by_id)


def test_studies_count_trials_by_status(results: Results) -> None:
    studies = results.studies().set_index("study")
    counted = studies.loc["on-cpu", ["trials", "reached", "missed", "failed"]].tolist()
    assert counted == [4, 3, 1, 0]
    assert studies.loc["on-gpu", "best_time_s"] == 0.5


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda r: r.trials("on-cpi"), "did you mean `on-cpu`"),
        (lambda r: r.curves("on-cpu/t0999"), "no such trial"),
        (lambda r: r.best(n=0), "n must be 1 or more, but got 0"),
        (lambda r: r.best(kind="certifed"), "did you mean `certified`"),
        (lambda r: r.best(where="optimizer="), "must have a value"),
        (lambda r: r.trials("on-cpu", where="batch_sise>1"), "did you mean `batch_size`"),
    ],
)
def test_mistakes_are_told_in_words(results: Results, ask: Any, expected: str) -> None:
    with pytest.raises((ConfigError, ServiceError), match=expected):
        ask(results)


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="no such file yet"):
        Results(f"sqlite:///{tmp_path / 'none.db'}").studies()
    assert not (tmp_path / "none.db").exists()


def test_no_secret_is_shown() -> None:
    assert repr(Results("postgresql://me:hush@host/db")) == "Results('postgresql://me:***@host/db')"


def test_the_package_imports_pandas_only_once_results_are_asked_for() -> None:
    assert imported("import tune_speed", "pandas") == set()
    assert imported("from tune_speed import Results", "pandas", "torch") == {"pandas"}
    with pytest.raises(AttributeError, match="module 'tune_speed' has no attribute 'Result'"):
        tune_speed.Result  # noqa: B018
