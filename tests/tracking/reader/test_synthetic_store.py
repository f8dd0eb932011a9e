import importlib.util
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tune_speed.core.records import TrialRecord
from tune_speed.tracking import Query, Store, Tracker, find_trials, schema
from tune_speed.tracking.reader.leaders import find_leaders

SOURCE = Path(__file__).parents[2] / "benchmarks" / "synthetic_store.py"
OF_THE_RUN = ("mlflow.parentRunId", f"{schema.PREFIX}search_id", f"{schema.PREFIX}updated_at")


@pytest.fixture(scope="module")
def synthetic_store() -> ModuleType:
    spec = importlib.util.spec_from_file_location("synthetic_store", SOURCE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def stores(
    synthetic_store: ModuleType, tmp_path_factory: pytest.TempPathFactory, empty_store: Path
) -> tuple[str, str]:
    """The same trials in two stores: filled in bulk, and written by the tracker."""
    uris = []
    for _ in range(2):
        folder = tmp_path_factory.mktemp("twin")
        shutil.copy(empty_store, folder / "mlflow.db")
        uris.append(f"sqlite:///{folder / 'mlflow.db'}")
    made: list[TrialRecord] = list(synthetic_store.records("study", 12, seed=3, certified=2))
    synthetic_store.add_study(Store(uris[0]), made)
    tags = {**synthetic_store.STUDY_TAGS, "workload": made[0].workload_name}
    tracker = Tracker(Store(uris[1]), study="study", study_tags=tags, linger_s=0.02)
    tracker.reconcile({each.trial_id: each for each in made})
    assert tracker.close(timeout_s=60) == ()
    return uris[0], uris[1]


def contents(uri: str) -> dict[str, Any]:
    client = Store(uri).create()
    (experiment,) = (e for e in client.search_experiments() if e.name == "study")
    found = {}
    for run in client.search_runs([experiment.experiment_id]):
        tags = {
            key: value.replace(run.info.run_id, "the run's id")
            for key, value in run.data.tags.items()
            if key not in OF_THE_RUN
        }
        is_trial = schema.TRIAL_ID in tags
        curve = client.get_metric_history(run.info.run_id, "accuracy") if is_trial else []
        found[run.info.run_name] = (
            run.info.status,
            run.info.start_time if is_trial else None,
            run.data.params,
            tags,
            run.data.metrics,
            [(point.value, point.timestamp, point.step) for point in curve],
        )
    return found


def test_runs_filled_in_bulk_are_those_that_the_tracker_writes(stores: tuple[str, str]) -> None:
    in_bulk, by_tracker = map(contents, stores)
    assert len(by_tracker) == 13 and in_bulk == by_tracker


def test_both_stores_give_the_same_leaders_and_totals(stores: tuple[str, str]) -> None:
    in_bulk, by_tracker = (
        find_leaders(Store(uri), Query(kind="estimate"), top=3) for uri in stores
    )
    assert [t.record for t in in_bulk.trials] == [t.record for t in by_tracker.trials]
    assert in_bulk.totals == by_tracker.totals
    estimates = find_trials(Store(stores[0]), Query(kind="estimate"))
    assert sum(totals.trials for totals in in_bulk.totals.values()) == len(estimates)
