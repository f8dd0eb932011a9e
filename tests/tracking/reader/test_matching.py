from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers.making import make_record
from helpers.tracking.stores import put

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.tracking import Store
from tune_speed.tracking.filter.where import parse_where
from tune_speed.tracking.reader.queries import Query, by_board, find_trials


def record(number: int) -> TrialRecord:
    optimizer = ("sgd", "adamw")[number % 2]
    made = make_record(
        f"t{number:04d}",
        Status.MISSED if number == 2 else Status.REACHED,
        time_s=10.0 - number,
        study=("first", "second")[number // 4],
        device=("H200", "A100")[number // 2 % 2],
    )
    recipe = {"optimizer": {optimizer: {"lr": number / 10}}, "batch_size": 2**number}
    return made.model_copy(update={"recipe": recipe})


@pytest.fixture(scope="module")
def uri(any_new_store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("files"))
        put(map(record, range(8)), any_new_store)
        yield any_new_store


def found(uri: str, text: str | None, **only: Any) -> list[int]:
    where = None if text is None else parse_where(text)
    trials = by_board(find_trials(Store(uri), Query(**only, where=where)))
    return [int(trial.record.trial_id[1:]) for trial in trials]


def test_trials_come_board_by_board_fastest_first_and_misses_last(uri: str) -> None:
    assert found(uri, None) == [7, 6, 3, 2, 5, 4, 1, 0]
    assert found(uri, None, study="first") == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("text", "only"),
    [
        (None, {}),
        ("batch_size >= 32 and batch_size != 64", {}),
        ("batch_size in (1, 4, 32)", {"only_reached": True}),
        ("status != missed and study = first", {"device": "a1"}),
        ("optimizer = sgd or lr > 0.5", {"workload": "digits", "kind": "estimate"}),
        ("batch_size > 1", {"kind": "certified"}),
        (None, {"device": "_2"}),
        (None, {"only_reached": True, "limit": 2}),
        ("trial_id = t0003", {"study": "first"}),
    ],
)
def test_tables_and_mlflow_give_the_same(
    uri: str, text: str | None, only: dict[str, Any], by_mlflow: Callable[[], None]
) -> None:
    where = None if text is None else parse_where(text)
    directly = find_trials(Store(uri), Query(**only, where=where))
    by_mlflow()
    assert directly == find_trials(Store(uri), Query(**only, where=where))
    assert bool(directly) == (only not in ({"kind": "certified"}, {"device": "_2"}))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("batch_size >= 32", {5, 6, 7}),
        ("lr >= 0.5", {5, 6, 7}),
        ("optimizer = sgd and batch_size > 4", {4, 6}),
        ("batch_size = 1 or study = second and device = A100", {0, 6, 7}),
        ("optimizer.sgd.lr > 0.1 and optimizer.adamw.lr is none", {2, 4, 6}),
        ("batch_size > 1000", set()),
    ],
)
def test_a_filter_takes_what_fits(uri: str, text: str, numbers: set[int]) -> None:
    assert set(found(uri, text)) == numbers


def test_a_filter_may_take_hits_only(uri: str) -> None:
    assert found(uri, "optimizer = sgd and batch_size < 32", only_reached=True) == [4, 0]
    assert found(uri, "optimizer.sgd.lr = 0.2", only_reached=True) == []


def test_a_filter_goes_with_other_conditions(uri: str) -> None:
    assert found(uri, "batch_size > 4", study="second", device="h2") == [5, 4]


@pytest.mark.parametrize("text", ["batch_sise > 4", "optimizer.sgd.lrr > 4", "n > 0 or lrx = 1"])
def test_a_field_that_no_trial_has_is_a_mistake(uri: str, text: str) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        found(uri, text)


def test_a_field_that_only_trials_of_other_studies_have_is_a_mistake(uri: str) -> None:
    put([record(0).model_copy(update={"study": "third", "recipe": {"depth": 3}})], uri)
    assert found(uri, "depth = 3") == [0]
    with pytest.raises(ConfigError, match="none of the trials has it"):
        found(uri, "depth = 3", study="first")


def test_a_store_without_trials_of_a_study_is_no_mistake(uri: str) -> None:
    assert found(uri, "batch_sise > 4", device="nothing") == []
