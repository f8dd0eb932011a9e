"""Images of several classes each: from the data set through the training to its metrics."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.training.tiny import CPU, Tiny
from sklearn import metrics
from torch import Tensor

from tune_speed import testing
from tune_speed.components.metrics.base import (
    average_precision,
    balanced_accuracy,
    guesses,
    top5_accuracy,
)
from tune_speed.components.models import MODELS
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import RunResult, Status
from tune_speed.data import DATASETS
from tune_speed.data.base import DatasetConfig, DecodedData, Images, OnProgress, main_classes
from tune_speed.data.cache import PreparedData, prepare
from tune_speed.data.orders import Curriculum, RepeatFactor
from tune_speed.data.split import SplitConfig, make_splits
from tune_speed.training.evaluate import evaluate
from tune_speed.training.objective import finish, run_trial
from tune_speed.training.precheck import misfits
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, TrialSpec
from tune_speed.training.workload import Workload
from tune_speed.tuning.admission import prepare_workload

DRAWS = torch.Generator().manual_seed(0)
LOGITS = (torch.randn(200, 4, generator=DRAWS) * 2).round()
"""With ties."""
SEVERAL = (torch.rand(200, 4, generator=DRAWS) > torch.tensor([0.2, 0.5, 0.7, 0.9])).float()
ONE = torch.randint(4, (200,), generator=DRAWS)


class Several(DatasetConfig):
    """Images with bright rows, bright columns, a dark corner, or any of these; some with none."""

    count: int = 160
    """Images, 1 or more."""

    def num_train(self) -> int:
        return self.count

    def num_test(self) -> None:
        return None

    def sources(self) -> list[Path]:
        return []

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        draws = np.random.default_rng(0)
        pixels = draws.integers(0, 60, (self.count, 8, 8, 1), np.uint8)
        labels = (draws.random((self.count, 3)) < (0.5, 0.4, 0.2)).astype(np.float32)
        pixels[labels[:, 0] > 0, ::2] += 90
        pixels[labels[:, 1] > 0, :, ::2] += 90
        pixels[labels[:, 2] > 0, :3, :3] = 0
        on_progress(self.count, self.count)
        return DecodedData(Images(pixels, labels), None, ("rows", "columns", "corner"))


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(DATASETS, "several", Several)
    monkeypatch.setitem(MODELS, "tiny", Tiny)
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tables: None) -> PreparedData:
    return prepare(Several())


def workload(metric: str = "average_precision", value: float = 0.999, **more: Any) -> Workload:
    target = {"metric": metric, "value": value}
    return Workload.model_validate({"dataset": {"name": "several"}, "target": target, **more})


def recipe(**fields: Any) -> Recipe:
    tree: dict[str, Any] = {
        "model": {"tiny": {"norm": "batch"}},
        "optimizer": {"adamw": {"lr": 0.03}},
        "epochs": 12,
        "batch_size": 16,
        "speedups": {"loss": "bce"},
    }
    return Recipe.model_validate(tree | fields)


def trained(fields: dict[str, Any], **of_workload: Any) -> RunResult:
    spec = TrialSpec(
        study="study",
        trial_id="t0000",
        params={},
        recipe=recipe(**fields),
        workload=workload(**of_workload),
        workload_hash="w" * 16,
        space_hash="s" * 16,
        seed=0,
        allotment=Allotment(device="cpu", cpu_fraction=0.5),
    )
    return finish(run_trial(spec), on_report=lambda _: None).runs[0]


LOADER = {"loader": {"dataloader": {"workers": 0}}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"class_weights": "balanced", "label_smoothing": 0.02, **LOADER},
        {"augmentation": {"mixup": 0.2, "cutmix": 1.0}},
        {"order": "repeat_factor", "speedups": {"loss": {"focal": {"alpha": None, "prior": 0.4}}}},
        {"order": {"curriculum": {"step_length": 5}}},
        {"speedups": {"loss": "bce", "selection": "selective_backprop", "averaging": "ema"}},
    ],
    ids=["bce", "class weights", "mixes", "focal", "curriculum", "selection"],
)
def test_several_labels_are_learned(fields: dict[str, Any]) -> None:
    result = trained(fields)
    assert result.status in (Status.MISSED, Status.REACHED), result.traceback
    first, last = result.evaluations[0], result.final
    assert last is not None and last.loss is not None and first.loss is not None
    assert last.loss < first.loss or first is last
    assert last.values["average_precision"] > 0.8
    assert 0 <= last.accuracy <= last.micro_f1 <= 1


def test_cross_entropy_is_refused_before_any_step() -> None:
    refused = trained({"speedups": {}})
    assert refused.status == Status.FAILED and not refused.evaluations
    facts = {"image_shape": (8, 8, 1), "num_classes": 3, "num_train": 100}
    problems = misfits(recipe(speedups={}), **facts, are_several=True)
    assert [problem.path for problem in problems] == ["speedups.loss"]
    assert not misfits(recipe(), **facts, are_several=True)


def test_a_search_knows_that_images_have_several_labels_and_what_guesses_reach() -> None:
    options = {"download": False, "on_progress": lambda done, total: None}
    assert prepare_workload(workload(), **options).are_several
    for metric in ("accuracy", "micro_f1", "macro_f1", "average_precision", "balanced_accuracy"):
        with pytest.raises(ConfigError) as refused:
            prepare_workload(workload(metric, 0.15), **options)
        assert [each.path for each in refused.value.problems] == ["workload.target.value"]


def test_parts_keep_the_shares_of_classes(data: PreparedData) -> None:
    splits = make_splits(data, SplitConfig(validation_frac=0.25, test_frac=0.25))
    whole = data.train.labels.mean(axis=0)
    for part in splits[:3]:
        assert part.labels.dtype == np.float32 and part.labels.shape == (len(part.pixels), 3)
        assert part.labels.mean(axis=0) == pytest.approx(whole, abs=0.1)
    total = sum(len(part.labels) for part in splits[:3])
    assert total == len(data.train.labels)


def test_an_image_counts_for_its_rarest_class() -> None:
    labels = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 0], [0, 1, 0]], dtype=np.float32)
    assert main_classes(labels).tolist() == [1, 0, 2, 3, 1]
    assert main_classes(np.array([2, 0])).tolist() == [2, 0]


def test_rare_classes_repeat_the_images_that_have_them_too(data: PreparedData) -> None:
    """LVIS repeats an image by the largest factor of its classes."""
    labels, sizes = data.train.labels, {"batch_size": 8, "samples_per_step": 8, "seed": 0}
    order: Any = RepeatFactor(threshold=0.6).open(labels, **sizes)
    by_class = np.maximum(1, np.sqrt(0.6 / labels.mean(axis=0)))
    assert order.factors == pytest.approx(np.maximum(1, (labels * by_class).max(axis=1)))
    scored = Curriculum(start_frac=0.5).open(labels, **sizes)
    first = scored.with_scores(np.arange(len(labels), dtype=float)).epoch(0)
    assert labels[np.unique(first)].mean(axis=0) == pytest.approx(labels.mean(axis=0), abs=0.1)


def scores_of(logits: Tensor, labels: Tensor) -> Any:
    batches = list(zip(logits.split(64), labels.split(64), strict=True))
    return evaluate(torch.nn.Identity(), batches, device=CPU, autocast_dtype=None)


def test_scores_of_several_labels_are_those_of_scikit_learn() -> None:
    scores, found, true = scores_of(LOGITS, SEVERAL), LOGITS.numpy() > 0, SEVERAL.numpy()
    assert scores.accuracy == pytest.approx(metrics.accuracy_score(true, found))
    for kind in ("macro", "micro"):
        expected = metrics.f1_score(true, found, average=kind)
        assert getattr(scores, f"{kind}_f1") == pytest.approx(expected)
    p = LOGITS.double().sigmoid().numpy()
    by_class = -(true * np.log(p) + (1 - true) * np.log(1 - p))
    assert scores.loss == pytest.approx(by_class.sum(axis=1).mean(), rel=1e-5)


def test_average_precision_is_that_of_scikit_learn() -> None:
    expected = metrics.average_precision_score(SEVERAL.numpy(), LOGITS.numpy())
    assert average_precision(LOGITS, SEVERAL) == pytest.approx(expected)
    one_hot, shares = np.eye(4)[ONE.numpy()], LOGITS.double().softmax(dim=1).numpy()
    expected = metrics.average_precision_score(one_hot, shares)
    assert average_precision(LOGITS, ONE) == pytest.approx(expected)
    without = SEVERAL.clone()
    without[:, 1] = 0
    kept = metrics.average_precision_score(without[:, [0, 2, 3]].numpy(), LOGITS[:, [0, 2, 3]])
    assert average_precision(LOGITS, without) == pytest.approx(kept)


def test_balanced_accuracy_is_that_of_scikit_learn() -> None:
    guessed = LOGITS.argmax(dim=1).numpy()
    expected = metrics.balanced_accuracy_score(ONE.numpy(), guessed)
    assert balanced_accuracy(LOGITS, ONE) == pytest.approx(expected)
    few = ONE.clamp(max=2)
    with warnings.catch_warnings(action="ignore"):
        expected = metrics.balanced_accuracy_score(few.numpy(), guessed)
    assert balanced_accuracy(LOGITS, few) == pytest.approx(expected)
    each = [metrics.balanced_accuracy_score(SEVERAL[:, k], LOGITS[:, k] > 0) for k in range(4)]
    assert balanced_accuracy(LOGITS, SEVERAL) == pytest.approx(np.mean(each))


def test_one_of_several_labels_among_the_first_five_is_enough() -> None:
    logits = torch.arange(7.0).repeat(2, 1)
    labels = torch.tensor([[1, 0, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]]).float()
    assert top5_accuracy(logits, labels) == 0.5


def constant(row: Any, of: Callable[..., float], true: np.ndarray) -> float:
    return of(true, np.tile(row, (len(true), 1)))


def test_guesses_are_what_constant_predictions_reach() -> None:
    true = SEVERAL.numpy()
    known = guesses(true, 4)
    rows = [[int(digit) for digit in f"{number:04b}"] for number in range(16)]
    best = max(constant(row, metrics.accuracy_score, true) for row in rows)
    assert known["accuracy"] == pytest.approx(best)
    for kind in ("macro", "micro"):
        reached = metrics.f1_score(true, np.ones_like(true), average=kind)
        assert known[f"{kind}_f1"] == pytest.approx(reached)
    flat = metrics.average_precision_score(true, np.zeros_like(true))
    assert known["average_precision"] == pytest.approx(flat)
    ones = guesses(ONE.numpy(), 4)
    most = np.full(200, np.bincount(ONE).argmax())
    assert ones["accuracy"] == pytest.approx(metrics.accuracy_score(ONE, most))
    assert ones["macro_f1"] == pytest.approx(
        metrics.f1_score(ONE, most, average="macro", zero_division=0)
    )
    assert ones["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(ONE, most))


def test_a_data_set_of_several_labels_keeps_the_contracts_of_data_sets() -> None:
    testing.check_dataset("several", Several)
