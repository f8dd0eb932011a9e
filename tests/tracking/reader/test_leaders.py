import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.making import WORKLOAD, make_record, make_run
from sqlalchemy import NullPool, create_engine, text

from tune_speed.core.comparability import board_key, totals_of
from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.words import Device
from tune_speed.reporting.leaderboard.queries import find_boards
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.tracking import Query, Store, Tracker, find_trials, schema
from tune_speed.tracking.reader.leaders import Leaders, find_leaders

STUDIES = ("first", 'it\'s "odd" 100% \\ `x`/y', "old", "mixed")
DEVICES = ("NVIDIA H200", "NVIDIA A100", "cpu 'ünï' \\ 100%")
NUM_ESTIMATES = 16
FILTERS: list[dict[str, Any]] = [
    {},
    {"study": "first"},
    {"study": "old"},
    {"device": "nvidia"},
    {"device": "ÜNÏ' \\"},
    {"device": "nvidia_h"},
    {"kind": "certified"},
    {"workload": "digits", "device": "h200", "kind": "estimate"},
    {"workload": "cifar10"},
]


def records(study: str) -> Iterator[TrialRecord]:
    chance = random.Random(study)
    for number in range(NUM_ESTIMATES):
        status = chance.choice([Status.REACHED] * 3 + [Status.MISSED, Status.OOM, Status.FAILED])
        yield make_record(
            f"t{number:04d}",
            status,
            time_s=float(chance.randint(1, 4)),
            study=study,
            device=chance.choice(DEVICES[:2]),
        )
    yield make_record("t9999", Status.CAPPED, study=study, device=DEVICES[2])
    for number, hits in enumerate([5, 3, 2, 0]):
        runs = tuple(
            make_run(Status.REACHED if i < hits else Status.MISSED, time_s=1.0 + i, seed=i)
            for i in range(5)
        )
        last = runs[-1].status
        made = make_record(f"c{number}", last, study=study, runs=runs, kind="certified")
        yield made.model_copy(update={"device": Device.model_validate(DEVICES[0])})


def deliver(store: Store, study: str, made: list[TrialRecord], **settings: Any) -> Tracker:
    tracker = Tracker(store, study=study, study_tags={}, linger_s=0.02, **settings)
    tracker.reconcile({each.trial_id: each for each in made})
    assert tracker.close(timeout_s=60) == ()
    return tracker


def forget(uri: str, study: str) -> None:
    runs = "(SELECT run_uuid FROM tags WHERE key = :study AND value = :name)"
    names = {"study": schema.STUDY, "name": study}
    engine = create_engine(uri, poolclass=NullPool)
    with engine.begin() as connection:
        for table in ("metrics", "latest_metrics"):
            keys = f"('{schema.EXPECTED}', '{schema.FINAL_METRIC}')"
            delete = f"DELETE FROM {table} WHERE run_uuid IN {runs} AND key IN {keys}"
            connection.execute(text(delete), names)
        delete = f"DELETE FROM tags WHERE run_uuid IN {runs} AND key = '{schema.FACTS}'"
        connection.execute(text(delete), names)


@pytest.fixture(scope="module")
def filled(any_new_store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Four studies; an older version left the third, and of the fourth all but its last search."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("files"))
        store = Store(any_new_store)
        client = store.create()
        client.create_run(client.create_experiment("somebody else's"), run_name="t0000")
        for study in STUDIES:
            made = list(records(study))
            deliver(store, study, made[: len(made) // 2], search_id="a")
            if study in ("old", "mixed"):
                forget(any_new_store, study)
            deliver(store, study, made[len(made) // 2 :], search_id="b")
            if study == "old":
                forget(any_new_store, study)
        yield any_new_store


def seen(boards: list[Any]) -> list[Any]:
    """Returns of leaderboards what must not depend on how the trials were found."""
    return [
        (
            (board.workload_hash, board.device, board.kind, board.trials, board.reached),
            (round(board.tuning_cost_s, 6), round(board.device_s, 6)),
            [(r.study, r.trial_id, r.rank, r.tied, r.run_id, r.study_trials) for r in board.rows],
        )
        for board in boards
    ]


def by_leaders(found: Leaders, *, top: int) -> list[Any]:
    trials = [(trial.run_id, trial.record) for trial in found.trials]
    totals = {"totals": found.totals, "study_totals": found.study_totals}
    return seen(make_boards(trials, top=top, **totals))


def by_reading_all(uri: str, *, top: int, **filters: Any) -> list[Any]:
    kind = filters.pop("kind", None)
    found = find_trials(Store(uri), Query(**filters))
    everything = [(trial.run_id, trial.record) for trial in found]
    boards = make_boards(everything, top=top)  # Of either kind, as a search's cost is of estimates.
    return seen([board for board in boards if kind in (None, board.kind)])


@pytest.mark.parametrize(
    ("top", "filters"), [(1, {}), (1000, {}), *((3, each) for each in FILTERS)], ids=str
)
def test_leaders_give_the_boards_that_all_trials_give(
    filled: str, top: int, filters: dict[str, Any], by_mlflow: Callable[[], None]
) -> None:
    expected = by_reading_all(filled, top=top, **filters)
    for _ in range(2):
        found = find_leaders(Store(filled), Query(**filters), top=top)
        assert by_leaders(found, top=top) == expected
        by_mlflow()
    assert expected or filters == {"workload": "cifar10"} or filters == {"device": "nvidia_h"}


def test_no_more_is_fetched_than_is_shown_and_one(filled: str) -> None:
    found = find_leaders(Store(filled), Query(study="first"), top=2)
    counts = [sum(board_key(t.record) == key for t in found.trials) for key in found.totals]
    assert sorted(counts) == [1, 2, 3, 3]


@pytest.mark.parametrize("with_misses", [False, True])
def test_a_certified_board_says_what_its_search_cost(filled: str, with_misses: bool) -> None:
    query = Query(study="first", kind="certified")
    (board,) = find_boards(Store(filled), query, top=9, with_misses=with_misses)
    estimates = [
        r for r in records("first") if (r.kind, str(r.device)) == ("estimate", board.device)
    ]
    assert {row.study_trials for row in board.rows} == {len(estimates)} and estimates


def test_a_board_without_a_hit_still_has_its_target(filled: str) -> None:
    found = find_leaders(Store(filled), Query(study="first", device="cpu"))
    (trial,), (totals,) = found.trials, found.totals.values()
    assert trial.record.workload["target"] == WORKLOAD["target"]
    assert (totals.trials, totals.reached) == (1, 0)


def test_a_recipe_that_misses_in_half_of_its_runs_leads_nothing(uri: str, store: Store) -> None:
    runs = tuple(make_run(s, seed=i) for i, s in enumerate([Status.REACHED, Status.MISSED]))
    deliver(store, "study", [make_record("t0000", runs=runs), make_record("t0001", time_s=9.0)])
    found = find_leaders(Store(uri))
    assert [trial.record.trial_id for trial in found.trials] == ["t0001"]


def test_a_resumed_search_counts_nothing_twice(uri: str, store: Store) -> None:
    made = list(records("study"))
    for part in (made[:10], made, made):
        deliver(store, "study", part, search_id="one")
    found = find_leaders(Store(uri))
    assert found.totals == {key: totals_on(made, key) for key in sorted(set(map(board_key, made)))}


@pytest.mark.parametrize("is_sql", [True, False])
def test_runs_in_the_trash_lead_nothing_until_they_are_back(
    uri: str, store: Store, by_mlflow: Callable[[], None], is_sql: bool
) -> None:
    def leading() -> list[str]:
        return [trial.record.trial_id for trial in find_leaders(Store(uri)).trials]

    if not is_sql:
        by_mlflow()
    deliver(store, "study", [make_record(f"t000{i}", time_s=1.0 + i) for i in range(3)])
    first = find_leaders(Store(uri), top=1).trials[0].run_id
    store.client.delete_run(first)
    assert leading() == ["t0001", "t0002"]
    store.client.restore_run(first)
    assert leading() == ["t0000", "t0001", "t0002"]


def test_a_store_without_the_study_is_explained_by_mlflow(filled: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean `first`"):
        find_leaders(Store(filled), Query(study="fist"))
    with pytest.raises(ServiceError, match="no such file yet"):
        find_leaders(Store(f"sqlite:///{tmp_path / 'none.db'}"))


def totals_on(made: list[TrialRecord], key: Any) -> Any:
    return totals_of(record for record in made if board_key(record) == key)
