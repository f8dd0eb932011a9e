import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.training.tiny import (
    CPU,
    Tiny,
    make_images,
    make_recipe,
    make_splits,
    to_end,
)
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score, log_loss, top_k_accuracy_score
from torch import Tensor, nn

from tune_speed.components.metrics.base import top5_accuracy
from tune_speed.components.plugins import registry
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import RunResult, Status
from tune_speed.core.targets import Target
from tune_speed.data.datasets.builtin import Digits
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.sharing import Sharing
from tune_speed.study.file import study_of
from tune_speed.study.yaml import scan_yaml
from tune_speed.training.build import Job
from tune_speed.training.evaluate import Scores, evaluate
from tune_speed.training.loop import train
from tune_speed.training.workload import Workload


def scores_of(
    logits: NDArray[np.float64], labels: NDArray[np.int64], *, batch_size: int = 7
) -> Scores:
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
def test_macro_f1_leaves_out_classes_that_never_appear_as_scikit_learn_does(absent):
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
    images, labels, _ = make_images(count)
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


STUDY = """
study: other_target
workload:
  dataset: {name: digits}
  target: {metric: %s, value: %s%s}
recipe:
  model: resnet20
  optimizer: {sgd: {lr: 0.1}}
  epochs: {low: 1, high: 3}
  batch_size: 64
"""
AUC = '''"""A metric of one's own."""

from tune_speed.components import Metric


def auc(logits, labels):
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels.cpu(), logits.softmax(dim=1).cpu(), multi_class="ovr"))


METRICS = {
    "auc": Metric(
        about="Mean area under the curves of each class against the others.",
        unit="1",
        source="scikit-learn, roc_auc_score(multi_class='ovr')",
        of_run=lambda run: None if run.final is None else run.final.values.get("auc"),
        of_logits=auc,
    ),
}
'''


def trained(target: Target, *, epochs: float = 5.0) -> RunResult:
    workload = Workload(dataset=Digits(), target=target)
    return to_end(
        train(
            Job(
                workload,
                make_recipe(epochs=epochs),
                make_splits(num_train=60, num_validation=60),
                seed=0,
                device=CPU,
            ),
            clock=Clock(synchronize=lambda: None),
            sharing=Sharing.alone(),
        )
    )


def test_top5_accuracy_is_scikit_learns() -> None:
    logits = torch.randn(500, 10, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(10, (500,), generator=torch.Generator().manual_seed(1))
    expected = top_k_accuracy_score(labels.numpy(), logits.numpy(), k=5)
    assert top5_accuracy(logits, labels) == pytest.approx(expected, abs=1e-12)
    assert top5_accuracy(logits[:, :4], labels % 4) == 1.0


def test_training_ends_at_its_loss() -> None:
    first = trained(Target(metric="loss", value=1e-9, mode="min"))
    assert first.status == Status.MISSED
    losses = [e.loss for e in first.evaluations if e.loss is not None]
    assert losses[-1] < losses[0]
    easy = (losses[-1] + losses[0]) / 2
    again = trained(Target(metric="loss", value=easy, mode="min"))
    assert again.status == Status.REACHED
    assert again.stop_reason.figures["target"] == easy
    assert [e.loss for e in again.evaluations] == [e.loss for e in first.evaluations]


def test_loss_that_holds_before_training_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"workload\.target\.value:"):
        trained(Target(metric="loss", value=100.0, mode="min"))


def test_target_of_a_plugin_is_measured_at_each_evaluation(tmp_path: Path) -> None:
    (tmp_path / "my_auc.py").write_text(AUC)
    registry.load([str(tmp_path / "my_auc.py")])
    try:
        study_of(scan_yaml(STUDY % ("auc", 0.999, ""), file="s.yaml"), check_data=False)
        run = trained(Target(metric="auc", value=0.9999))
    finally:
        registry.unload()
    values = [e.values["auc"] for e in run.evaluations]
    assert all(0 <= value <= 1 and math.isfinite(value) for value in values)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (("auc", 0.9, ""), "target.metric: must be one of accuracy, macro_f1"),
        (("loss", 0.3, ""), "must be min for loss"),
        (("accuracy", 0.3, ", mode: min"), "must be max for accuracy"),
        (("accuracy", 1.5, ""), "target.value: must be more than 0 and at most 1"),
        (("loss", ".inf", ", mode: min"), "finite"),
    ],
)
def test_impossible_targets_are_refused_with_their_line(target, words):
    with pytest.raises(ConfigError, match=words) as caught:
        study_of(scan_yaml(STUDY % target, file="s.yaml"), check_data=False)
    assert "s.yaml:5" in str(caught.value)


def test_name_and_hash_of_older_targets_are_as_they_were() -> None:
    workload = Workload(dataset=Digits(), target=Target(value=0.97))
    assert workload.identity(data_hash="d") == workload.model_copy(
        update={"target": Target(value=0.97, mode="max")}
    ).identity(data_hash="d")
    loss = Workload(dataset=Digits(), target=Target(metric="loss", value=0.97, mode="min"))
    assert loss.identity(data_hash="d") != workload.identity(data_hash="d")
    assert loss.label == "digits-loss-0.97"


@pytest.mark.parametrize("value", [0.3, 30.0, -5.0])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_score_orders_values_and_its_goal_is_the_target(value, mode):
    target = Target(metric="own", value=value, mode=mode)
    assert target.score(value) == target.goal
    better = value + (1 if mode == "max" else -1)
    assert target.score(better) > target.goal and target.holds(better)
    assert target.score(2 * value - better) < target.goal


def test_shares_are_scored_as_they_are() -> None:
    target = Target(metric="accuracy", value=0.9)
    assert (target.score(0.5), target.goal) == (0.5, 0.9)
