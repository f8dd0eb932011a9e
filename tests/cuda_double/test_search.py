"""A search on a quarter of a GPU, from the study file to the leaderboard, with Ray's processes."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cuda_double.double import NAME
from helpers.command import Done, finished, ledger, mlflow_runs, run

from tune_speed.core.words import StopReason

pytestmark = pytest.mark.slow

PLUGIN = '''
import os
from pathlib import Path

import torch
from torch import nn

from tune_speed.components import ModelConfig


class Asserting(ModelConfig):
    """A linear network whose kernels assert."""

    times: int = 0
    """In how many processes, 0 or more."""

    def network(self, *, in_channels, num_classes, image_size):
        return Network(self.times, in_channels, num_classes)


class Network(nn.Module):
    def __init__(self, times, in_channels, num_classes):
        super().__init__()
        self.times = times
        self.head = nn.Linear(in_channels, num_classes)

    def forward(self, images):
        seen = Path(os.environ["ASSERTED"]) / str(self.times)
        seen.mkdir(exist_ok=True)
        if self.times and self.training and len(list(seen.iterdir())) < self.times:
            (seen / str(os.getpid())).touch()
            return images[torch.tensor([10**6], device=images.device)]
        return self.head(images.mean(dim=(2, 3)))


MODELS = {"asserting": Asserting}
'''
PLUGIN_FILE = ("--plugin", "asserting.py")
STUDY = """
study: tiny
workload:
  dataset: {name: digits}
  target: {metric: accuracy, value: 0.99}
  max_train_s: 600
  split: {validation_frac: 0.2, train_samples: 60, validation_samples: 30}
recipe:
  model: {asserting: {times: {choices: [0, 1, 99]}}}
  optimizer: {sgd: {lr: {low: 0.02, high: 0.4, log: true}}}
  epochs: 2
  batch_size: 20
  cuda_graph: {choices: [false, true]}
search:
  trials: 4
  concurrent: 1
  attempts: 2
  resources: {cpu: 0.5, gpu: 0.25}
  points_to_evaluate:
    - {model.asserting.times: 0, cuda_graph: false}
    - {model.asserting.times: 0, cuda_graph: true}
    - {model.asserting.times: 1}
    - {model.asserting.times: 99}
"""
WELL, ASSERTS_ONCE, ASSERTS = ("t0000", "t0001"), "t0002", "t0003"


class Gpus:
    """A machine with one GPU that is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tiny.yaml").write_text(STUDY)
        (folder / "asserting.py").write_text(PLUGIN)
        (folder / "asserted").mkdir()
        double = str(Path(__file__).parent / "processes")
        paths = filter(None, [double, os.environ.get("PYTHONPATH", "")])
        self._variables = {
            "PYTHONPATH": os.pathsep.join(paths),
            "RAY_OVERRIDE_RESOURCES": json.dumps({"GPU": 1}),
            "CUDA_DOUBLE_GIB": "0.5",
            "ASSERTED": str(folder / "asserted"),
        }

    def run(self, *arguments: str) -> Done:
        return run(*arguments, folder=self.folder, **self._variables)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Path:
    """The folder of a search in which one trial lost its device once, and one always."""
    gpus = Gpus(tmp_path_factory.mktemp("searched"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        done = gpus.run("search", "tiny.yaml", *PLUGIN_FILE)
    assert done.code in (0, 1), done.err
    assert len(finished(gpus.folder)) == len(mlflow_runs(gpus.folder)) == 4
    return gpus.folder


def record_of(folder: Path, trial_id: str) -> dict[str, Any]:
    return next(record for record in finished(folder) if record["trial_id"] == trial_id)


def test_search_of_fractional_trials_ends_with_a_leaderboard(
    searched: Path, call: Callable[..., Done]
) -> None:
    for trial_id in WELL:
        record = record_of(searched, trial_id)
        (result,) = record["runs"]
        assert (record["status"], record["device"]) == ("missed", NAME), record
        assert result["memory_limit_gib"] == pytest.approx(0.9 * 0.25 * 0.5)
        assert 0 < result["peak_memory_gib"] < result["memory_limit_gib"]
    board = call("leaderboard", "--misses", "--format", "csv", folder=searched)
    assert board.code == 0, board.err
    assert NAME in board.out and all(trial_id in board.out for trial_id in (*WELL, ASSERTS_ONCE))


def test_trial_on_a_lost_device_is_tried_again_in_a_fresh_process(searched: Path) -> None:
    assert record_of(searched, ASSERTS_ONCE)["status"] == "missed"
    (reason,) = reasons(searched, ASSERTS_ONCE)
    assert "DeviceFailed: AcceleratorError: CUDA error: device-side assert" in reason
    assert "it is run again" in reason
    assert not [each for trial_id in WELL for each in reasons(searched, trial_id)]


def test_lost_device_is_a_trials_reason_once_its_attempts_are_used_up(searched: Path) -> None:
    record = record_of(searched, ASSERTS)
    assert record["status"] == "failed"
    assert "CUDA error: device-side assert" in record["runs"][0]["stop_reason"]
    assert len(list((searched / "asserted" / "99").iterdir())) == 2  # Processes.


def reasons(folder: Path, trial_id: str) -> list[str]:
    events: list[dict[str, Any]] = ledger(folder)
    own = [e for e in events if e["event"] == "interrupted" and e["trial_id"] == trial_id]
    return [str(StopReason.model_validate(event["reason"])) for event in own]
