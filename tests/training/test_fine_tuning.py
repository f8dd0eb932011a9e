import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training.tiny import CPU, make_recipe, make_splits, run
from pydantic import ValidationError
from torch import nn

from tune_speed.components.models.cifar import ResNet
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.optim.libraries import TimmOptimizer
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.components.speedups.base import Shape
from tune_speed.training.build import build_model, set_seed
from tune_speed.training.precheck import misfits
from tune_speed.training.step.step import Group, Stepper, build_optimizer

SPLITS = make_splits(num_train=20, channels=1)
NET = ResNet(depth=8)
UNTIL = {"until": "blocks.1", "steps": 3}
SCHEDULE_FREE = {"optimizer": {"schedule_free_adamw": {"lr": 0.01}}}


def recipe_of(**fields: Any) -> Any:
    return make_recipe(**{"model": NET, **fields})


def model_of(recipe: Any) -> nn.Module:
    set_seed(recipe, 0)
    return build_model(recipe, SPLITS, seed=0, device=CPU)


def a_step() -> Group:
    images = torch.randn((8, 1, 6, 6), generator=torch.Generator().manual_seed(1))
    return Group(8, [(images, torch.arange(8) % 3)])


def rates_of(recipe: Any) -> dict[str, float]:
    model = model_of(recipe)
    groups = build_optimizer(model, recipe, device=CPU)[0].param_groups
    assert all(group["base_lr"] == group["lr"] for group in groups)
    rate_of = {id(p): group["lr"] for group in groups for p in group["params"]}
    return {name: rate_of[id(p)] for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", [n for n, kind in OPTIMIZERS.items() if not kind.finds_rate])
def test_rates_of_every_optimizer_follow_the_layers(name: str) -> None:
    optimizer = OPTIMIZERS[name](lr=0.1, lr_per_examples=16, weight_decay=0.1)
    fields = {"optimizer": optimizer, "layer_decay": 0.5, "head_lr_scale": 4.0}
    rates, plain = rates_of(recipe_of(**fields)), rates_of(recipe_of(optimizer=optimizer))
    # Stem, three blocks, and the head.
    places = {"conv": 4, "norm": 4, "blocks.0": 3, "blocks.1": 2, "blocks.2": 1, "classifier": -2}
    for weight, rate in rates.items():
        (place,) = (n for prefix, n in places.items() if weight.startswith(prefix))
        assert rate == pytest.approx(plain[weight] * 0.5**place)


def test_frozen_steps_are_those_of_so_many_epochs_or_steps() -> None:
    def kinds(**freeze: Any) -> list[tuple[bool, int]]:
        recipe = recipe_of(epochs=3.0, freeze={"until": "head", **freeze})
        schedule = recipe.step_schedule(num_train=20, height=6, width=6)
        return [(shape.is_frozen, count) for shape, count in schedule]

    # 20 images in steps of 8: three a pass.
    assert kinds(epochs=1.0) == [(True, 3), (False, 6)]
    assert kinds(epochs=0.01) == [(True, 1), (False, 8)]
    assert kinds(steps=5) == [(True, 5), (False, 4)]
    assert kinds(steps=50) == [(True, 9)]


def test_while_all_but_the_head_is_frozen_it_is_logistic_regression_on_the_features() -> None:
    recipe = recipe_of(freeze={"until": "head", "steps": 100}, optimizer=Sgd(lr=0.5))
    model = model_of(recipe)
    head = model.get_submodule("classifier")
    images, labels = next(iter(a_step().micro_batches))
    seen = list[torch.Tensor]()
    head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    model.eval()(images)
    features, judge = seen[0], copy.deepcopy(head)
    model.train()
    optimizer = torch.optim.SGD(judge.parameters(), lr=0.5, momentum=0.9, nesterov=True)
    stepper = Stepper(model, model, recipe, device=CPU)
    for _ in range(5):
        stepper.take(a_step(), Shape(6, 6, is_frozen=True), frac=0.5)
        optimizer.zero_grad()
        nn.functional.cross_entropy(judge(features), labels).backward()
        optimizer.step()
    torch.testing.assert_close(head.weight, judge.weight)


@pytest.mark.parametrize(
    "fields",
    [
        {"freeze": UNTIL, "speedups": {"averaging": "ema"}, "layer_decay": 0.7},
        {"activation_checkpointing": True, "speedups": {"averaging": "ema"}},
        {"optimizer": TimmOptimizer(name="adan", lr=0.01), "layer_decay": 0.7, "clip_norm": 1.0},
    ],
)
def test_a_run_learns_with_them(fields: dict[str, Any]) -> None:
    evaluations = run(recipe_of(epochs=8.0, **fields)).evaluations
    assert evaluations[-1].train_loss is not None
    assert evaluations[-1].train_loss < 0.8 * (evaluations[1].train_loss or 0)


def test_the_head_starts_fresh_where_asked_and_all_else_is_the_files(tmp_path: Path) -> None:
    torch.manual_seed(5)
    saved = NET.network(in_channels=1, num_classes=3, image_size=6).state_dict()
    torch.save(saved, tmp_path / "w.pt")
    model = NET.model_copy(update={"weights_file": str(tmp_path / "w.pt")})
    for is_fresh in (False, True):
        recipe = recipe_of(model=model).model_copy(update={"reinit_head": is_fresh})
        built = model_of(recipe).state_dict()
        differing = {name for name in saved if not torch.equal(saved[name], built[name])}
        assert differing == ({"classifier.weight", "classifier.bias"} if is_fresh else set())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"optimizer": {"yellowfin": {}}, "layer_decay": 0.5}, "layer_decay"),
        ({"optimizer": {"swats": {"lr": 0.1}}, "head_lr_scale": 2.0}, "head_lr_scale"),
        ({"reinit_head": True}, "reinit_head"),
        ({"freeze": {"until": "head", "steps": 1, "epochs": 1.0}}, "freeze"),
        ({"freeze": UNTIL, "speedups": {"depth": "boosted"}}, "boosted"),
        ({"freeze": UNTIL, "speedups": {"init": "whitening"}}, "freeze"),
        ({"activation_checkpointing": True, "compile": True}, "compile"),
        ({"activation_checkpointing": True, "cuda_graph": True}, "cuda_graph"),
        ({"activation_checkpointing": True, "speedups": {"depth": "boosted"}}, "boosted"),
        ({"freeze": UNTIL, "order": "curriculum"}, "curriculum"),
        ({**SCHEDULE_FREE, "lr_schedule": "one_cycle"}, "lr_schedule"),
        ({**SCHEDULE_FREE, "freeze": UNTIL}, "freeze"),
        ({**SCHEDULE_FREE, "speedups": {"averaging": "ema"}}, "ema"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        recipe_of(**fields)


def test_a_misspelt_stage_is_refused_before_any_trial() -> None:
    recipe = recipe_of(freeze={"until": "blokcs.1", "steps": 3})
    (problem,) = misfits(recipe, image_shape=(6, 6, 1), num_classes=3, num_train=20)
    assert (problem.path, "`blocks.1`" in str(problem.hint)) == ("freeze.until", True)
