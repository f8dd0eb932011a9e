"""Image trainings whose target is another metric than the accuracy."""

import math
from pathlib import Path
from typing import Literal

import pytest
import torch
from sklearn.metrics import top_k_accuracy_score
from training import CPU, make_recipe, make_splits, to_end

from tune_speed.components.metrics.of_run import top5_accuracy
from tune_speed.components.plugins import registry
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import RunResult, Status
from tune_speed.core.targets import Target
from tune_speed.data.datasets.digits import Digits
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.sharing import Sharing
from tune_speed.study.file import study_of
from tune_speed.study.yaml import scan_yaml
from tune_speed.training.loop import train
from tune_speed.training.workload import Workload

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
            workload,
            make_recipe(epochs=epochs),
            make_splits(num_train=60, num_validation=60),
            seed=0,
            device=CPU,
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
    assert f"≤ {easy:g}" in str(again.stop_reason)
    assert [e.loss for e in again.evaluations] == [e.loss for e in first.evaluations]


def test_loss_that_holds_before_training_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be below the loss before training"):
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
def test_impossible_targets_are_refused_with_their_line(
    target: tuple[str, object, str], words: str
) -> None:
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
def test_score_orders_values_and_its_goal_is_the_target(
    value: float, mode: Literal["max", "min"]
) -> None:
    target = Target(metric="own", value=value, mode=mode)
    assert target.score(value) == target.goal
    better = value + (1 if mode == "max" else -1)
    assert target.score(better) > target.goal and target.holds(better)
    assert target.score(2 * value - better) < target.goal


def test_shares_are_scored_as_they_are() -> None:
    target = Target(metric="accuracy", value=0.9)
    assert (target.score(0.5), target.goal) == (0.5, 0.9)
