"""Scores against scikit-learn and float64."""

import numpy as np
import pytest
import torch
from helpers.training.tiny import CPU, Tiny, make_images
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score, log_loss
from torch import Tensor, nn

from tune_speed.training.evaluate import Scores, evaluate


def scores_of(
    logits: NDArray[np.float64], labels: NDArray[np.int64], *, batch_size: int = 7
) -> Scores:
    """Evaluates a model whose logits are its images."""
    parts = zip(
        torch.tensor(logits, dtype=torch.float32).split(batch_size),
        torch.tensor(labels).split(batch_size),
        strict=True,
    )
    return evaluate(nn.Identity(), parts, device=CPU, autocast_dtype=None)


def random_predictions(
    seed: int, *, num_classes: int = 5
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(40, num_classes)), generator.integers(0, num_classes, 40)


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_scikit_learn(seed: int) -> None:
    logits, labels = random_predictions(seed)
    scores, predictions = scores_of(logits, labels), logits.argmax(axis=1)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert scores.accuracy == accuracy_score(labels, predictions)
    assert scores.macro_f1 == pytest.approx(f1_score(labels, predictions, average="macro"))
    assert scores.micro_f1 == pytest.approx(f1_score(labels, predictions, average="micro"))
    assert scores.loss == pytest.approx(log_loss(labels, probabilities, labels=range(5)), rel=1e-6)


def test_micro_f1_is_the_accuracy_where_each_image_has_one_label() -> None:
    scores = scores_of(*random_predictions(4))
    assert scores.micro_f1 == pytest.approx(scores.accuracy)
    assert scores.macro_f1 != pytest.approx(scores.accuracy)


@pytest.mark.parametrize("absent", [{3}, {0, 4}])
def test_macro_f1_leaves_out_classes_that_never_appear_as_scikit_learn_does(
    absent: set[int],
) -> None:
    logits, labels = random_predictions(0)
    logits[:, list(absent)] = -100
    labels = np.where(np.isin(labels, list(absent)), 1, labels)
    expected = f1_score(labels, logits.argmax(axis=1), average="macro")
    assert scores_of(logits, labels).macro_f1 == pytest.approx(expected)


def test_class_that_is_never_predicted_has_an_f1_of_zero() -> None:
    logits, labels = random_predictions(0)
    logits[:, 2] = -100
    expected = f1_score(labels, logits.argmax(axis=1), average="macro", zero_division=0)
    assert 2 in labels
    assert scores_of(logits, labels).macro_f1 == pytest.approx(expected)


def test_scores_do_not_depend_on_the_batches() -> None:
    logits, labels = random_predictions(1)
    whole, parts = (scores_of(logits, labels, batch_size=size) for size in (40, 3))
    assert whole[:2] == parts[:2]
    assert whole.loss == pytest.approx(parts.loss, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_loss_that_is_not_finite_is_none(bad: float) -> None:
    logits, labels = random_predictions(0)
    logits[3, 1] = bad
    assert scores_of(logits, labels).loss is None


def batches_of(count: int) -> list[tuple[Tensor, Tensor]]:
    images, labels = make_images(count)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    return list(zip(pixels.split(4), torch.from_numpy(labels).split(4), strict=True))


def make_model(**fields: object) -> nn.Module:
    torch.manual_seed(0)
    return Tiny(**fields).build(in_channels=1, num_classes=3, image_size=6)


def test_model_is_evaluated_without_dropout_and_trains_on_afterwards() -> None:
    model = make_model(norm="batch", dropout=0.9)
    first, second = (
        evaluate(model, batches_of(9), device=CPU, autocast_dtype=None) for _ in range(2)
    )
    assert first == second
    assert model.training
    assert model.norm.num_batches_tracked == 0


def test_training_mode_is_restored_after_an_error() -> None:
    model = make_model(crash_after=1)
    with pytest.raises(ZeroDivisionError):
        evaluate(model, batches_of(9), device=CPU, autocast_dtype=None)
    assert model.training


def test_forward_runs_in_the_given_precision() -> None:
    model, seen = make_model(), []
    model.classifier.register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    evaluate(model, batches_of(4), device=CPU, autocast_dtype=torch.bfloat16)
    evaluate(model, batches_of(4), device=CPU, autocast_dtype=None)
    assert seen == [torch.bfloat16, torch.float32]


def test_host_waits_for_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    for name in ("tolist", "item", "cpu", "numpy", "__float__", "__int__", "__bool__"):
        original = getattr(Tensor, name)

        def counted(tensor: Tensor, *, name: str = name, original=original) -> object:
            waits.append(name)
            return original(tensor)

        monkeypatch.setattr(Tensor, name, counted)
    evaluate(make_model(), batches_of(20), device=CPU, autocast_dtype=None)
    assert waits == ["tolist"]
