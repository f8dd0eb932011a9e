import gc
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.training.tiny import CPU, NUM_CLASSES, Tiny, make_recipe, make_splits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tune_speed.components.optim.base import OptimizerConfig, set_rates
from tune_speed.components.optim.optimizers import Adam, AdamW, Muon, Sgd, Swats, YellowFin
from tune_speed.components.schedules.base import Constant, Factors, ScheduleConfig
from tune_speed.components.schedules.decays import OneCycle
from tune_speed.components.speedups.base import Shape
from tune_speed.core.words import Note, NoteKind
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Loader, Planned
from tune_speed.data.split import Splits
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.training.build import build_model, open_loader, set_seed
from tune_speed.training.objective import resolve
from tune_speed.training.recipe import Recipe
from tune_speed.training.step import recorded
from tune_speed.training.step.step import EagerGradient, Group, Stepper, sum_of_losses

SHAPE = Shape(6, 6)
LR = 0.125
"""A rate that fp32 has exactly."""
NO_MOMENTUM = Sgd(lr=LR, momentum=0.0, nesterov=False)


def make_model(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    return Tiny(norm=norm).build(in_channels=1, num_classes=NUM_CLASSES, image_size=6)


def batch(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    images = torch.randn((count, 1, 6, 6), generator=torch.Generator().manual_seed(seed))
    return images, torch.arange(count) % NUM_CLASSES


def recipe_of(optimizer: OptimizerConfig = NO_MOMENTUM, **fields: Any) -> Recipe:
    return make_recipe(cuda_graph=True, batch_size=8, optimizer=optimizer, **fields)


def stepper_of(model: nn.Module, recipe: Recipe | None = None) -> Stepper:
    return Stepper(model, model, recipe or recipe_of(), device=CPU)


def take(stepper: Stepper, *counts: int, shape: Shape = SHAPE) -> Tensor:
    group = Group(sum(counts), [batch(count, seed) for seed, count in enumerate(counts)])
    return stepper.learn(group, shape, frac=0.5)


def test_recorded_step_is_that_of_all_its_micro_batches(recordings: list[Any]) -> None:
    model, plain = make_model("none"), make_model("none")
    loss_sum = take(stepper_of(model), 8, 3)
    losses = [
        functional.cross_entropy(plain(images), labels, reduction="sum")
        for images, labels in (batch(8, 0), batch(3, 1))
    ]
    assert float(loss_sum) == pytest.approx(float(sum(losses).detach()))
    wanted = torch.autograd.grad(sum(losses) / 11, list(plain.parameters()))
    for parameter, before, exact in zip(
        model.parameters(), plain.parameters(), wanted, strict=True
    ):
        torch.testing.assert_close(parameter, before - LR * exact)


def test_recordings_share_the_memory_of_the_first(recordings: list[Any]) -> None:
    stepper = stepper_of(make_model())
    for counts in ((8,), (8, 8), (8,), (8, 8)):
        take(stepper, *counts)
    assert recordings == [None, "pool 1"]


@pytest.mark.parametrize("optimizer", [Sgd(lr=LR), AdamW(lr=LR), Muon(lr=LR), Swats(lr=LR)])
def test_recording_leaves_all_as_it_was(recordings: list[Any], optimizer: OptimizerConfig) -> None:
    model = make_model()
    stepper = stepper_of(model, recipe_of(optimizer))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(7)
    stepper.record(Group(8, [batch(8)]), SHAPE)
    after = torch.rand(3)
    assert recordings == [None]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    states = [each for each in stepper.optimizer.state.values() if isinstance(each, dict)]
    tensors = [each for state in states for each in state.values() if torch.is_tensor(each)]
    assert not any(tensor.any() for tensor in tensors)
    torch.manual_seed(7)
    assert torch.equal(after, torch.rand(3))


def test_rehearsals_move_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """At full rate, the same images some times over ended in no numbers on a GPU."""

    def record(call: Any, device: torch.device, pool: Any) -> recorded.Recorded:
        before = [parameter.detach().clone() for parameter in model.parameters()]
        results = call()
        assert all(map(torch.equal, before, model.parameters()))
        return recorded.Recorded(lambda: None, results, pool)

    monkeypatch.setitem(recorded.RECORDERS, "cpu", record)
    monkeypatch.setattr(recorded.RecordedStep, "_refuse_nonsense", lambda *_: None)
    model = make_model()
    stepper = stepper_of(model)
    stepper.record(Group(8, [batch(8)]), SHAPE)
    assert stepper.optimizer.param_groups[0]["lr"] == LR, "and the rate is back"


def test_no_node_of_autograd_outlives_what_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[int]()

    def record(call: Any, device: torch.device, pool: Any) -> recorded.Recorded:
        gc.collect()
        tensors = [each for each in gc.get_objects() if isinstance(each, Tensor)]
        kept.append(sum(each.grad_fn is not None for each in tensors))
        return recorded.Recorded(lambda: None, call(), pool)

    monkeypatch.setitem(recorded.RECORDERS, "cpu", record)
    monkeypatch.setattr(recorded.RecordedStep, "_refuse_nonsense", lambda *_: None)
    stepper_of(make_model()).record(Group(8, [batch(8)]), SHAPE)
    assert kept == [0]


def test_recording_in_the_middle_keeps_momentum_and_loss_scale(recordings: list[Any]) -> None:
    learned = []
    for is_recorded in (False, True):
        model, recipe = make_model(), recipe_of(Sgd(lr=LR), precision="fp16", init_loss_scale=8.0)
        stepper = Stepper(model, model, recipe, device=CPU, is_recorded=is_recorded)
        losses = [float(take(stepper, *counts)) for counts in ((8,), (8, 8), (8,), (8, 8))]
        learned.append((losses, stepper.scaler.get_scale(), list(model.parameters())))
    (losses, scale, weights), (losses_again, scale_again, weights_again) = learned
    assert (losses, scale) == (losses_again, scale_again)
    assert all(map(torch.equal, weights, weights_again))


def test_kind_is_the_samples_the_steps_shape_and_what_makes_the_images(recordings):
    stepper = stepper_of(make_model())

    def make(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return images, labels

    for _ in range(2):
        take(stepper, 8)
        take(stepper, 6)
        take(stepper, 8, shape=SHAPE._replace(stage=1))
        stepper.learn(Group(8, [Planned(make, *batch(8))]), SHAPE, frac=0.5)
    assert len(recordings) == 4


def test_images_are_made_within_the_recorded_step(recordings: list[Any]) -> None:
    made = []

    def make(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        made.append(float(images.mean()))
        return 2 * images, labels

    model, plain = make_model("none"), make_model("none")
    stepper = stepper_of(model)
    stepper.record(Group(8, [Planned(make, *batch(8))]), SHAPE)
    made.clear()
    images, labels = batch(8, 5)
    loss_sum = stepper.learn(Group(8, [Planned(make, images, labels)]), SHAPE, frac=0.5)
    assert made == [pytest.approx(float(images.mean()))], "once, of the step's own images"
    expected = functional.cross_entropy(plain(2 * images), labels, reduction="sum")
    assert float(loss_sum) == pytest.approx(float(expected.detach()))


def test_rates_of_a_recorded_step_are_those_that_are_set_before_it(recordings: list[Any]) -> None:
    model = make_model("none")
    stepper = stepper_of(model)
    take(stepper, 8)
    held = stepper.optimizer.param_groups[0]["lr"]
    before = model.classifier.bias.detach().clone()
    set_rates(stepper.optimizer, Factors(lr=0.0, momentum=None))
    take(stepper, 8)
    assert torch.equal(model.classifier.bias, before)
    set_rates(stepper.optimizer, Factors(lr=1.0, momentum=None))
    take(stepper, 8)
    assert not torch.equal(model.classifier.bias, before)
    assert stepper.optimizer.param_groups[0]["lr"] is held, "where a graph reads it"


@pytest.mark.parametrize(
    ("optimizer", "schedule", "precision", "kernels", "expected"),
    [
        (Sgd(lr=LR), Constant(), "fp32", "fused", True),
        (Sgd(lr=LR), Constant(), "fp16", "fused", True),
        (Sgd(lr=LR), Constant(), "fp32", "foreach", False),
        (Sgd(lr=LR, decoupled_weight_decay=True), Constant(), "fp32", "fused", False),
        (Sgd(lr=LR), OneCycle(cycle_momentum=False), "fp32", "fused", True),
        # Its momentum changes from step to step.
        (Sgd(lr=LR), OneCycle(), "fp32", "fused", False),
        (Adam(lr=LR), Constant(), "bf16", "fused", True),
        (Muon(lr=LR), Constant(), "fp32", "fused", True),
        # The scaler asks whether gradients are finite.
        (Muon(lr=LR), Constant(), "fp16", "fused", False),
        (Swats(lr=LR), Constant(), "fp32", "fused", False),
        (YellowFin(lr=LR), Constant(), "fp32", "fused", False),
    ],
)
def test_update_is_recorded_where_steps_differ_in_gradients_and_rates_alone(
    recordings: list[Any],
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    precision: str,
    kernels: str,
    expected: bool,
) -> None:
    fields = {"lr_schedule": schedule, "precision": precision, "optimizer_kernels": kernels}
    recorder = stepper_of(make_model(), recipe_of(optimizer, **fields)).recorder
    assert recorder is not None and recorder.with_update == expected


@pytest.mark.parametrize(("optimizer", "says"), [(NO_MOMENTUM, False), (Swats(lr=LR), True)])
def test_record_says_where_weights_are_updated_outside(recordings, optimizer, says):
    notes = list[Note]()
    turnstile = Turnstile(None, why_not="alone")
    resolve(
        recipe_of(optimizer), make_splits(), device=CPU, turnstile=turnstile, on_note=notes.append
    )
    text = "weights are updated outside of the recorded step"
    assert notes == [Note.of(NoteKind.OTHER, text=text)] * says


def test_sixteen_kinds_are_recorded_and_further_ones_are_launched(recordings: list[Any]) -> None:
    weights = []
    for is_recorded in (False, True):
        model = make_model("none")
        stepper = Stepper(model, model, recipe_of(), device=CPU, is_recorded=is_recorded)
        for stage in range(18):
            take(stepper, 8, shape=SHAPE._replace(stage=stage))
        weights.append(list(model.parameters()))
    assert len(recordings) == 16
    assert all(map(torch.equal, *weights))


def test_steps_of_very_many_micro_batches_are_launched(recordings, monkeypatch):
    monkeypatch.setattr("tune_speed.training.step.step.MOST_BATCHES", 2)
    stepper = stepper_of(make_model())
    take(stepper, 8, 8, 8)
    assert not recordings
    take(stepper, 8, 8)
    assert len(recordings) == 1


def test_weights_that_are_never_trained_stay(recordings: list[Any]) -> None:
    model = make_model("none")
    model.conv.weight.requires_grad_(False)
    before = model.conv.weight.clone()
    take(stepper_of(model), 8)
    assert model.conv.weight.grad is None and torch.equal(model.conv.weight, before)


@pytest.mark.parametrize(
    ("largest", "enabled", "is_refused"),
    [
        (0.0, False, True),
        (0.0, True, True),
        (1e-20, False, False),
        (2.0, False, False),
        (math.inf, False, True),
        (math.nan, False, True),
        # Under a loss scale a first overflow is usual.
        (math.inf, True, False),
    ],
)
def test_gradients_that_are_none_or_no_numbers_are_refused(
    monkeypatch: pytest.MonkeyPatch, largest: float, enabled: bool, is_refused: bool
) -> None:
    def record(call: Any, device: torch.device, pool: Any) -> recorded.Recorded:
        results = call()

        def replay() -> None:
            results[1].flatten()[0] = -largest

        return recorded.Recorded(replay, results, None)

    monkeypatch.setitem(recorded.RECORDERS, "cpu", record)
    model = make_model("none")
    # A parameter without elements has no largest one.
    model.empty = nn.Parameter(torch.zeros(0))
    stepper = stepper_of(model, recipe_of(precision="fp16" if enabled else "fp32"))
    if not is_refused:
        stepper.record(Group(8, [batch(8)]), SHAPE)
        return
    with pytest.raises(RuntimeError, match=rf"the largest of them is {largest:g}\. Try cuda_graph"):
        stepper.record(Group(8, [batch(8)]), SHAPE)


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("fp32", torch.float32),
        ("half", torch.float32),
        ("half_fp32_norms", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ],
)
def test_only_mixed_precisions_cast_by_themselves(precision: str, expected: torch.dtype) -> None:
    seen = []

    def forward(images: Tensor) -> Tensor:
        seen.append(functional.linear(images.flatten(1), torch.ones((3, 36))))
        return seen[-1]

    recipe = make_recipe().model_copy(update={"precision": precision})
    loss = sum_of_losses(*batch(4), recipe, frac=1.0, forward=forward, device=CPU)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    eager = EagerGradient(recipe, forward=forward, scaler=scaler, device=CPU)
    # The losses by which samples are chosen are those of the step, one by one.
    each = eager._losses(*batch(4))
    assert [logits.dtype for logits in seen] == [expected] * 2
    assert each.shape == (4,) and not each.requires_grad
    assert float(each.sum()) == pytest.approx(float(loss), rel=1e-5)


def test_loss_is_scaled_before_it_is_differentiated() -> None:
    model, plain = make_model("none"), make_model("none")
    scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=4.0)
    eager = EagerGradient(make_recipe(), forward=model, scaler=scaler, device=CPU)
    images, labels = batch(6)
    found = eager.add(images, labels, divisor=6.0, shape=SHAPE, frac=1.0)
    loss = functional.cross_entropy(plain(images), labels, reduction="sum")
    assert not found.requires_grad and float(found) == pytest.approx(float(loss.detach()))
    for parameter, exact in zip(
        model.parameters(),
        torch.autograd.grad(4.0 * loss / 6, list(plain.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(parameter.grad, exact)


def test_steps_are_recorded_on_cuda_alone() -> None:
    assert {"cuda": recorded.record_graph} == recorded.RECORDERS


VIEWS = {
    *("view", "permute", "t", "transpose", "slice", "select", "unsqueeze", "squeeze", "expand"),
    *("detach", "alias", "as_strided", "unbind", "split", "_unsafe_view", "reshape"),
}
SHAPE_KERNEL_COUNTS, BATCH = Shape(32, 32), 16
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
    assert (
        count(lambda: add(images, labels, divisor=16.0, shape=SHAPE_KERNEL_COUNTS, frac=1.0))
        <= most
    )


def test_backward_ends_before_a_first_layer_whose_bias_is_frozen() -> None:
    stepper, loader = opened(speedups={"init": {"whitening": {"frozen": True, "bias_frac": 0.4}}})
    images, labels = next(loader.epoch(0))
    counted = []
    for shape in (SHAPE_KERNEL_COUNTS, SHAPE_KERNEL_COUNTS._replace(is_bias_frozen=True)):
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
    stepper.learn(Group(BATCH, [next(loader.epoch(0))]), SHAPE_KERNEL_COUNTS, frac=0.5)
    images, labels = next(loader.epoch(0))
    stepper.gradient.add(images, labels, divisor=16.0, shape=SHAPE_KERNEL_COUNTS, frac=1.0)
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
    stepper.record(Group(BATCH, [loader.dummy(BATCH)]), SHAPE_KERNEL_COUNTS)
    batch = next(loader.planned(0))

    def step() -> None:
        set_rates(stepper.optimizer, Factors(lr=0.5, momentum=None))
        stepper.learn(Group(BATCH, [batch]), SHAPE_KERNEL_COUNTS, frac=0.5)

    with Kernels() as kernels:
        step()
    num_rates = len(stepper.optimizer.param_groups)
    assert kernels.names == ["fill_"] * num_rates + ["copy_"]
