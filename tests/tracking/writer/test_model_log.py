from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.making import make_record
from torch import Tensor, nn

from tune_speed.tracking import Store, Tracker, schema
from tune_speed.tracking.writer import descriptions
from tune_speed.tracking.writer.models import MODEL, Card, forget_others, log_model, run_of_trial

SHAPE, NUM_CLASSES = (1, 4, 4), 3


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, NUM_CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.linear(pixels.float().flatten(1))
        return logits


class Undrawable(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.float() if pixels.sum() > 3 else pixels.half()


@pytest.fixture
def searched(make_tracker: Callable[..., Tracker]) -> Tracker:
    tracker = make_tracker()
    for trial_id in ("t0000", "t0001"):
        tracker.trial_finished(record=make_record(trial_id))
    assert tracker.close(timeout_s=20) == ()
    return tracker


def log(store: Store, tracker: Tracker, trial_id: str, model: nn.Module) -> str:
    run = run_of_trial(store, tracker.run_id, trial_id)
    assert run is not None
    card = Card("accuracy 0.8750", "validation", SHAPE, NUM_CLASSES)
    return log_model(store, model.eval(), card, run_id=run.info.run_id)


def pixels(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(count).integers(0, 256, (count, *SHAPE), np.uint8)


@pytest.mark.filterwarnings("ignore")  # MLflow's own, while it loads.
def test_a_logged_model_loads_without_a_pickle_and_takes_any_number_of_images(
    store: Store, searched: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    network = Network()
    uri = log(store, searched, "t0001", network)
    mlflow.set_tracking_uri(store.client.tracking_uri)
    loaded, served = mlflow.pytorch.load_model(uri), mlflow.pyfunc.load_model(uri)
    for count in (1, 2, 9):
        images = pixels(count)
        logits = network(torch.from_numpy(images)).detach()
        assert torch.equal(loaded(torch.from_numpy(images)), logits)
        np.testing.assert_array_equal(served.predict(images), logits.numpy())


def test_the_run_says_that_it_has_a_model_and_how_to_use_it(
    store: Store, searched: Tracker
) -> None:
    uri = log(store, searched, "t0001", Network())
    run = run_of_trial(store, searched.run_id, "t0001")
    assert run is not None and run.data.tags[MODEL] == uri
    note = run.data.tags[descriptions.NOTE]
    assert f'mlflow.pytorch.load_model("{uri}")' in note and "accuracy 0.8750" in note
    assert "tune-speed show" in note, "what the description said before is gone"
    (output,) = run.outputs.model_outputs
    assert uri == f"models:/{output.model_id}"


def test_requirements_are_pinned_to_what_runs_here(store: Store, searched: Tracker) -> None:
    uri = log(store, searched, "t0000", Network())
    model = store.client.get_logged_model(uri.removeprefix("models:/"))
    folder = Path(model.artifact_location.removeprefix("file://"))
    lines = (folder / "requirements.txt").read_text().splitlines()
    assert f"torch=={torch.__version__.split('+')[0]}" in lines and len(lines) == 3
    assert not list(folder.rglob("*.pth")) and not list(folder.rglob("*.pkl"))


def test_only_one_model_of_a_search_remains(store: Store, searched: Tracker) -> None:
    from mlflow.exceptions import MlflowException

    first, second = (log(store, searched, trial_id, Network()) for trial_id in ("t0000", "t0001"))
    run = run_of_trial(store, searched.run_id, "t0001")
    assert run is not None
    forget_others(store, searched.run_id, but=run.info.run_id)
    found = store.client.search_logged_models([searched.experiment_id])
    assert [f"models:/{model.model_id}" for model in found] == [second]
    with pytest.raises(MlflowException):
        store.client.get_logged_model(first.removeprefix("models:/"))
    earlier = run_of_trial(store, searched.run_id, "t0000")
    assert earlier is not None and MODEL not in earlier.data.tags


def test_a_network_that_cannot_be_drawn_leaves_nothing(store: Store, searched: Tracker) -> None:
    with pytest.raises(Exception, match=r"data-dependent|[Dd]ynamic control flow"):
        log(store, searched, "t0000", Undrawable())
    assert store.client.search_logged_models([searched.experiment_id]) == []
    run = run_of_trial(store, searched.run_id, "t0000")
    assert run is not None and MODEL not in run.data.tags
    assert run.data.tags[schema.STATUS] == "reached"
