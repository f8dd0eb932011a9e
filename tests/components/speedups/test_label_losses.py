"""Losses of soft labels, of several an image, and with class weights."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from timm.loss import BinaryCrossEntropy
from torch.nn import functional

from tune_speed.components.speedups.chosen import Speedups
from tune_speed.components.speedups.losses import Bce, EasiestFirst, Focal
from tune_speed.components.speedups.modules.losses import (
    losses_of,
    targets_of,
)
from tune_speed.core.errors import ConfigError
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import sum_of_losses

DRAWS = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 5, generator=DRAWS)
LABELS = torch.tensor([0, 1, 2, 3, 4, 0])
SOFT = torch.rand(6, 5, generator=DRAWS).softmax(dim=1)
SEVERAL = (torch.rand(6, 5, generator=DRAWS) > 0.5).float()
WEIGHTS = (0.5, 1.0, 2.0, 0.1, 3.0)


def loss_of(config, labels, *, label_smoothing=0.0, **more):
    return config.sum_of_losses(
        LOGITS, labels, frac=0.5, label_smoothing=label_smoothing, **more
    ).item()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("threshold", [None, 0.2])
def test_bce_is_timms_with_the_sum_over_classes(smoothing, threshold):
    theirs = BinaryCrossEntropy(
        smoothing=smoothing, target_threshold=threshold, reduction="mean", sum_classes=True
    )
    ours = loss_of(Bce(target_threshold=threshold), LABELS, label_smoothing=smoothing)
    assert ours == pytest.approx(6 * theirs(LOGITS, LABELS).item(), rel=1e-6)


@pytest.mark.parametrize("targets", [SOFT, SEVERAL], ids=["soft", "several"])
def test_soft_and_several_labels_are_targets_of_each_class(targets):
    theirs = BinaryCrossEntropy(smoothing=0.0, sum_classes=True)(LOGITS, targets).item()
    assert loss_of(Bce(), targets) == pytest.approx(6 * theirs, rel=1e-6)
    assert loss_of(Focal(alpha=None, gamma=0.0), targets) == pytest.approx(6 * theirs, rel=1e-6)
    each = losses_of(LOGITS, targets, are_several=True)
    assert each.shape == (6,) and each.sum().item() == pytest.approx(6 * theirs, rel=1e-6)


@pytest.mark.parametrize("config", [Bce(), Focal(), EasiestFirst(groups=(0, 0, 1, 1, 1))])
def test_a_soft_label_of_one_class_is_that_class(config):
    logits = torch.randn(6, 7, generator=DRAWS) if isinstance(config, EasiestFirst) else LOGITS
    one_hot = functional.one_hot(LABELS, 5).float()
    hard, soft = (
        config.sum_of_losses(logits, labels, frac=1.0, label_smoothing=0.1).item()
        for labels in (LABELS, one_hot)
    )
    assert hard == pytest.approx(soft, rel=1e-6)


def test_a_groups_target_is_the_sum_of_its_classes():
    logits = torch.randn(6, 7, generator=DRAWS)
    config = EasiestFirst(groups=(0, 0, 1, 1, 1))
    grouped = torch.stack([SOFT[:, :2].sum(dim=1), SOFT[:, 2:].sum(dim=1)], dim=1)
    expected = -(grouped * logits[:, 5:].log_softmax(dim=1)).sum()
    found = config.sum_of_losses(logits, SOFT, frac=0.0, label_smoothing=0.0)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("labels", [LABELS, SOFT], ids=["hard", "soft"])
def test_cross_entropy_with_class_weights_is_the_formula(labels):
    chosen = recipe(class_weights=list(WEIGHTS), label_smoothing=0.1)
    here = {"forward": lambda logits: logits, "device": torch.device("cpu")}
    found = sum_of_losses(LOGITS, labels, chosen, frac=1.0, **here)
    targets = targets_of(labels, 5, label_smoothing=0.1)
    expected = -(torch.tensor(WEIGHTS) * targets * LOGITS.log_softmax(dim=1)).sum()
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_class_weights_weigh_the_questions_of_bce():
    each = functional.binary_cross_entropy_with_logits(LOGITS, SEVERAL, reduction="none")
    expected = (each * torch.tensor(WEIGHTS)).sum().item()
    assert loss_of(Bce(), SEVERAL, class_weights=WEIGHTS) == pytest.approx(expected, rel=1e-6)


def recipe(**fields):
    tree = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1, "batch_size": 8}
    return Recipe.model_validate(tree | fields)


def test_balanced_weights_are_those_of_scikit_learn():
    labels = np.array([0] * 7 + [1] * 2 + [2])
    balanced = recipe(class_weights="balanced").with_class_weights(np.bincount(labels))
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert balanced.class_weights == pytest.approx(tuple(expected))
    assert np.mean(np.take(balanced.class_weights, labels)) == pytest.approx(1.0)
    assert recipe().with_class_weights(np.bincount(labels)) == recipe()


def test_a_recipe_without_class_weights_is_written_as_before():
    assert "class_weights" not in recipe().model_dump(mode="json")
    assert "class_weights" not in recipe().speed_fields()
    again = recipe(class_weights=[1.0, 2.5])
    assert Recipe.model_validate(again.model_dump(mode="json")) == again


@pytest.mark.parametrize("loss", ["focal", {"easiest_first": {"groups": [0, 0, 1]}}])
def test_class_weights_are_refused_where_a_loss_has_none(loss):
    with pytest.raises(ValueError, match="class_weights"):
        recipe(class_weights="balanced", speedups={"loss": loss})
    recipe(class_weights="balanced", speedups={"loss": "bce"})


@pytest.mark.parametrize("loss", [None, {"easiest_first": {"groups": [0, 0, 1]}}])
def test_several_labels_are_refused_by_cross_entropy_and_its_kin(loss):
    chosen = recipe(speedups={"loss": loss} if loss else {})
    chosen.check_labels(num_classes=3, are_several=False)
    with pytest.raises(ConfigError) as refused:
        chosen.check_labels(num_classes=3, are_several=True)
    assert [problem.path for problem in refused.value.problems] == ["speedups.loss"]


@pytest.mark.parametrize("loss", ["bce", "focal"])
def test_losses_with_a_sigmoid_a_class_take_several_labels(loss):
    recipe(speedups={"loss": loss}).check_labels(num_classes=3, are_several=True)


def test_weights_of_another_number_of_classes_are_refused():
    with pytest.raises(ConfigError) as refused:
        recipe(class_weights=[1.0, 2.0]).check_labels(num_classes=3, are_several=False)
    assert [problem.path for problem in refused.value.problems] == ["class_weights"]


def test_class_weights_are_given_to_losses_with_a_parameter_for_them_alone():
    """Plugins keep their signature."""
    given = {"frac": 1.0, "label_smoothing": 0.0, "class_weights": WEIGHTS}
    for config in (Focal(), Bce()):
        loss = Speedups(loss=config).sum_of_losses(LOGITS, LABELS, **given)
        plain = Speedups(loss=config).sum_of_losses(LOGITS, LABELS, **given | {"class_weights": ()})
        assert torch.equal(loss, plain) == isinstance(config, Focal)
