from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from training import CPU

from tune_speed.components.optim.base import set_rates
from tune_speed.components.schedules.base import Factors
from tune_speed.components.speedups.base import Shape
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Loader
from tune_speed.data.split import Splits
from tune_speed.training.build import build_model, open_loader, set_seed
from tune_speed.training.recipe import Recipe
from tune_speed.training.step import recorded
from tune_speed.training.step.step import Group, Stepper

VIEWS = {
    *("view", "permute", "t", "transpose", "slice", "select", "unsqueeze", "squeeze", "expand"),
    *("detach", "alias", "as_strided", "unbind", "split", "_unsafe_view", "reshape"),
}
SHAPE, BATCH = Shape(32, 32), 16
MUON = {"lr": 0.24, "newton_schulz_steps": 3, "normalize_weights": True}
TREE: dict[str, Any] = {
    "model": {"speednet": {"width1": 8, "width2": 16, "width3": 16}},
    "optimizer": {"muon": {**MUON, "sgd_lr": 1.7, "bias_lr": 106.0, "weight_decay": 0.016}},
    "batch_size": BATCH,
    "epochs": 1,
    "label_smoothing": 0.2,
    "augmentation": {"pad": 2, "flip": "alternating"},
    "speedups": {"init": {"whitening": {"frozen": True}}},
}


class Kernels(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in VIEWS and func.namespace == "aten":
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def count(call: Callable[[], object]) -> int:
    with Kernels() as kernels:
        call()
    return len(kernels.names)


def opened(**fields: Any) -> tuple[Stepper, Loader]:
    recipe = Recipe.model_validate({**TREE, **fields})
    pixels = np.random.default_rng(0).integers(0, 256, (2 * BATCH, 32, 32, 3), np.uint8)
    images = Images(pixels, np.arange(2 * BATCH) % 10)
    splits = Splits(images, images, images, (0.5,) * 3, (0.25,) * 3, 10, split_hash="")
    set_seed(recipe, 0)
    model = build_model(recipe, splits, seed=0, device=CPU).train()
    loader = open_loader(recipe, images, splits, seed=0, device=CPU)
    return Stepper(model, model, recipe, device=CPU), loader


def test_making_a_batch_is_ten_kernels() -> None:
    _, loader = opened()
    batch = next(loader.planned(0))
    assert count(lambda: tuple(batch)) <= 10


@pytest.mark.parametrize(
    ("precision", "most"), [("fp32", 90), ("bf16", 109), ("half_fp32_norms", 92)]
)
def test_forward_and_backward_are_few_kernels(precision: str, most: int) -> None:
    stepper, loader = opened(precision=precision)
    images, labels = next(loader.epoch(0))
    add = stepper.gradient.add
    assert count(lambda: add(images, labels, divisor=16.0, shape=SHAPE, frac=1.0)) <= most


def test_backward_ends_before_a_first_layer_whose_bias_is_frozen() -> None:
    stepper, loader = opened(speedups={"init": {"whitening": {"frozen": True, "bias_frac": 0.4}}})
    images, labels = next(loader.epoch(0))
    counted = []
    for shape in (SHAPE, SHAPE._replace(is_bias_frozen=True)):
        stepper.recipe.speedups.begin_step(stepper.model, shape)
        with Kernels() as kernels:
            stepper.gradient.add(images, labels, divisor=16.0, shape=shape, frac=1.0)
        stepper.optimizer.zero_grad()
        counted.append(Counter(kernels.names))
    saved = counted[0] - counted[1]
    # Of seven layers, each a convolution and a GELU.
    assert [each["convolution_backward"] for each in counted] == [7, 6]
    assert [each["gelu_backward"] for each in counted] == [7, 6]
    assert saved.total() == counted[0].total() - counted[1].total() == 2


def test_update_by_muon_copies_no_weights() -> None:
    stepper, loader = opened()
    stepper.learn(Group(BATCH, [next(loader.epoch(0))]), SHAPE, frac=0.5)
    images, labels = next(loader.epoch(0))
    stepper.gradient.add(images, labels, divisor=16.0, shape=SHAPE, frac=1.0)
    with Kernels() as kernels:
        stepper.optimizer.step()
    assert len(kernels.names) <= 66 and "clone" not in kernels.names


def test_host_launches_a_recorded_step_by_its_plan_and_its_rates(monkeypatch):
    def record(
        call: Callable[[], list[Tensor]], device: torch.device, pool: Any
    ) -> recorded.Recorded:
        return recorded.Recorded(lambda: None, call(), pool)

    monkeypatch.setitem(recorded.RECORDERS, "cpu", record)
    monkeypatch.setattr(recorded.RecordedStep, "_refuse_nonsense", lambda *_: None)
    stepper, loader = opened(cuda_graph=True)
    stepper.record(Group(BATCH, [loader.dummy(BATCH)]), SHAPE)
    batch = next(loader.planned(0))

    def step() -> None:
        set_rates(stepper.optimizer, Factors(lr=0.5, momentum=None))
        stepper.learn(Group(BATCH, [batch]), SHAPE, frac=0.5)

    with Kernels() as kernels:
        step()
    num_rates = len(stepper.optimizer.param_groups)
    assert kernels.names == ["fill_"] * num_rates + ["copy_"]
