import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.command import TINY_STUDY, Done, finished, run_inside
from helpers.documents import documented_tags, undocumented
from helpers.making import make_record

from tune_speed.core.comparability import fastest
from tune_speed.core.records import Status, TrialRecord
from tune_speed.tracking import Store, Tracker
from tune_speed.tracking.columns import METRICS
from tune_speed.tracking.store.store import runs_with
from tune_speed.tracking.writer import descriptions
from tune_speed.tracking.writer.models import MODEL
from tune_speed.training.objective import load_splits
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Workload
from tune_speed.tuning.best_model import log_best_model
from tune_speed.tuning.driver.trial_files import weights_file

CHANGES = {
    "trials: 6": "trials: 2",
    "model: resnet20": "model: {resnet: {depth: 8}}",
    "value: 0.8": "value: 0.3",
    "{low: 1, high: 10}": "{low: 4, high: 6}",
}
STUDY = f"{TINY_STUDY}tracking: {{log_model: best}}\n"
for _old, _new in CHANGES.items():
    STUDY = STUDY.replace(_old, _new)
LOAD = """
import sys, mlflow, numpy, torch
mlflow.set_tracking_uri(sys.argv[1])
data = numpy.load("validation.npz")
for address in sys.argv[2:]:
    model = mlflow.pytorch.load_model(address)
    with torch.inference_mode():
        predicted = model(torch.from_numpy(data["pixels"])).argmax(dim=1).numpy()
    print("accuracy", float((predicted == data["labels"]).mean()))
assert "tune_speed" not in sys.modules
"""


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> tuple[Path, Done]:
    """A folder in which the tiny study was searched, and what the command said."""
    os.environ["TUNE_SPEED_CACHE"] = str(session_cache)
    folder = tmp_path_factory.mktemp("searched")
    (folder / "tiny.yaml").write_text(STUDY)
    done = run_inside("search", "tiny.yaml", folder=folder)
    assert done.code == 0, done.err
    return folder, done


def best_of(folder: Path) -> TrialRecord:
    best = fastest(map(TrialRecord.model_validate, finished(folder)))
    assert best is not None
    return best


def runs_of(folder: Path) -> dict[str, Any]:
    client = Store(f"sqlite:///{folder}/mlflow.db").create()
    experiment = client.get_experiment_by_name("tiny")
    return {r.info.run_name: r for r in runs_with(client, [experiment.experiment_id], {})}


@pytest.mark.slow
def test_the_best_model_loads_elsewhere_to_the_same_accuracy(searched: tuple[Path, Done]) -> None:
    folder, _ = searched
    best = best_of(folder)
    mlflow_run = runs_of(folder)[best.trial_id]
    validation = load_splits(Workload.model_validate(best.workload)).validation
    pixels = np.ascontiguousarray(validation.pixels.transpose(0, 3, 1, 2))
    np.savez(folder / "validation.npz", pixels=pixels, labels=validation.labels)
    addresses = (f"runs:/{mlflow_run.info.run_id}/model", mlflow_run.data.tags[MODEL])
    variables = {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    said = subprocess.run(
        [sys.executable, "-c", LOAD, f"sqlite:///{folder}/mlflow.db", *addresses],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert best.runs[0].final is not None
    accuracies = [line for line in said.stdout.splitlines() if line.startswith("accuracy ")]
    assert accuracies == [f"accuracy {best.runs[0].final.accuracy}"] * 2


@pytest.mark.slow
def test_only_the_best_trial_has_a_model_and_no_weights_stay(searched: tuple[Path, Done]) -> None:
    folder, done = searched
    with_model = [name for name, each in runs_of(folder).items() if MODEL in each.data.tags]
    assert with_model == [best_of(folder).trial_id]
    assert list((folder / "tune_speed_studies" / "tiny" / "weights").iterdir()) == []
    assert f"the model of {with_model[0]} is logged: models:/" in done.err


@pytest.mark.slow
def test_resuming_logs_nothing_new(searched: tuple[Path, Done], call: Callable[..., Done]) -> None:
    folder, _ = searched
    before = runs_of(folder)[best_of(folder).trial_id].data.tags[MODEL]
    done = call("search", "tiny.yaml", "--resume", folder=folder)
    assert f"is logged: {before}" in done.err
    assert runs_of(folder)[best_of(folder).trial_id].data.tags[MODEL] == before


@pytest.mark.slow
def test_every_tag_and_metric_of_a_real_search_is_documented(searched: tuple[Path, Done]) -> None:
    found = list(runs_of(searched[0]).values())
    tags = {tag for each in found for tag in each.data.tags}
    assert undocumented(tags, documented_tags()) == []
    assert undocumented({key for each in found for key in each.data.metrics}, METRICS) == []
    assert {"tune_speed.searched", "tune_speed.record", MODEL, descriptions.NOTE} <= tags


@pytest.mark.slow
def test_searched_parameters_are_told_from_the_rest(searched: tuple[Path, Done]) -> None:
    found = runs_of(searched[0])
    names = ["optimizer.sgd.lr", "epochs", "batch_size"]
    assert found.pop("tiny").data.tags["tune_speed.searched"].split(", ") == names
    trials = [each.data for each in found.values()]
    assert all(trial.tags["tune_speed.searched"].split(", ") == names for trial in trials)
    different = {k for k in trials[0].params if len({t.params[k] for t in trials}) > 1}
    assert different <= set(names), "MLflow's compare view shows first what differs"
    assert all(float(trial.params[name]) > 0 for trial in trials for name in names)


@pytest.mark.slow
def test_every_page_is_described(searched: tuple[Path, Done], call: Callable[..., Done]) -> None:
    folder, _ = searched
    found, best = runs_of(folder), best_of(folder)
    own = found.pop("tiny").data.tags[descriptions.NOTE]
    assert own.startswith("**2 trials finished**")
    assert f"/runs/{found[best.trial_id].info.run_id})" in own
    assert "tune-speed search tiny.yaml" in own
    for each in found.values():
        assert f"tune-speed train {each.info.run_id}" in each.data.tags[descriptions.NOTE]
    client = Store(f"sqlite:///{folder}/mlflow.db").create()
    experiment = client.get_experiment_by_name("tiny").tags[descriptions.NOTE]
    assert "| batch_size | one of 25, 50 |" in experiment
    done = call("train", found[best.trial_id].info.run_id, folder=folder)
    assert done.code == 0, "the command of the description does not run"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/mlflow.db")


def delivered(store: Store, *records: TrialRecord) -> str:
    tracker = Tracker(store, study="study", study_tags={})
    for record in records:
        tracker.trial_finished(record=record)
    assert tracker.close(timeout_s=20) == ()
    return tracker.run_id


def test_weights_that_are_elsewhere_are_named(store: Store, tmp_path: Path) -> None:
    records = [make_record("t0000", time_s=2.0), make_record("t0001")]
    parent_id = delivered(store, *records)
    line = log_best_model(store, records=records, folder=tmp_path, parent_id=parent_id)
    assert "the model of t0001 is not logged" in line
    assert str(weights_file(tmp_path, "t0001")) in line and "does not share this folder" in line


def test_no_model_without_a_hit_or_a_delivered_trial(store: Store, tmp_path: Path) -> None:
    parent_id = delivered(store, make_record("t0000", Status.MISSED))
    missed = [make_record("t0000", Status.MISSED)]
    line = log_best_model(store, records=missed, folder=tmp_path, parent_id=parent_id)
    assert line == "no model is logged: no trial met the target"
    late = [make_record("t0001")]
    line = log_best_model(store, records=late, folder=tmp_path, parent_id=parent_id)
    assert "MLflow has not taken the trial yet" in line


@pytest.mark.slow
def test_weights_that_fit_no_network_are_an_answer_and_no_crash(
    store: Store, tmp_path: Path
) -> None:
    fields = {
        "model": "resnet20",
        "optimizer": {"sgd": {"lr": 0.1}},
        "epochs": 1.0,
        "batch_size": 32,
    }
    recipe = Recipe.model_validate(fields).model_dump(mode="json")
    record = make_record().model_copy(update={"recipe": recipe})
    parent_id = delivered(store, record)
    file = weights_file(tmp_path, "t0000")
    file.parent.mkdir()
    file.write_bytes(b"no weights at all")
    line = log_best_model(store, records=[record], folder=tmp_path, parent_id=parent_id)
    assert line.startswith("the model of t0000 is not logged: ") and "Error" in line
    assert file.is_file(), "what was not logged must not be lost"
