"""The words for batches, and the number of steps."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from training import make_recipe

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.data.loaders.configs import Resident, Streaming
from tune_speed.training.recipe import Recipe, not_applicable

AUTO = {"accumulation_steps": "auto", "batch_size": None}


def test_effective_batch_size_is_batch_size_times_accumulation_steps() -> None:
    assert make_recipe(batch_size=64, accumulation_steps=4).samples_per_step == 256
    assert make_recipe(**AUTO, effective_batch_size=96).samples_per_step == 96


@pytest.mark.parametrize(
    ("fields", "must"),
    [
        ({"batch_size": None}, "batch_size must be given"),
        ({"effective_batch_size": 64}, "effective_batch_size left out"),
        (AUTO, "must come with effective_batch_size"),
        ({**AUTO, "batch_size": 8, "effective_batch_size": 64}, "without batch_size"),
        ({"batch_size": 0}, "greater than 0"),
        ({"accumulation_steps": 0}, "greater than 0"),
        ({"accumulation_steps": "all"}, "auto"),
        ({"batch_size": "8"}, "valid integer"),
        ({"epochs": 0.0}, "greater than 0"),
        ({"epochs": float("inf")}, "finite|less than or equal"),
        ({"label_smoothing": 1.0}, "less than 1"),
        ({"clip_norm": 0.0}, "greater than 0"),
        ({"precision": "fp8"}, "fp16"),
    ],
)
def test_recipe_that_cannot_work_is_refused(fields: dict[str, object], must: str) -> None:
    with pytest.raises(ValidationError, match=must):
        make_recipe(**fields)


@pytest.mark.parametrize(
    ("num_train", "batch_size", "accumulation_steps", "epochs", "per_epoch", "steps"),
    [
        (20, 8, 1, 1.0, 3, 3),
        (20, 8, 2, 1.0, 2, 2),  # 16 samples, then a ragged group of 4
        (20, 8, 4, 3.0, 1, 3),  # one group, smaller than wanted
        (24, 8, 1, 1.5, 3, 4),  # 4.5, to the even number
        (24, 8, 1, 2.4, 3, 7),
        (24, 8, 1, 0.01, 3, 1),  # at least one step
        (45_000, 128, 4, 10.0, 88, 880),
    ],
)
def test_steps_are_counted_in_whole_groups(
    num_train: int,
    batch_size: int,
    accumulation_steps: int,
    epochs: float,
    per_epoch: int,
    steps: int,
) -> None:
    recipe = make_recipe(
        batch_size=batch_size, accumulation_steps=accumulation_steps, epochs=epochs
    )
    one_epoch = recipe.model_copy(update={"epochs": 1.0})
    assert one_epoch.steps(num_train=num_train) == per_epoch
    assert recipe.steps(num_train=num_train) == steps


@given(micro_batch=st.integers(1, 64), parts=st.integers(1, 64), accumulation=st.integers(1, 8))
def test_another_micro_batch_keeps_the_effective_batch(
    micro_batch: int, parts: int, accumulation: int
) -> None:
    recipe = make_recipe(batch_size=micro_batch * parts, accumulation_steps=accumulation)
    other = recipe.with_micro_batch(micro_batch)
    assert other.batch_size == micro_batch
    assert other.samples_per_step == recipe.samples_per_step
    assert (
        other.model_copy(
            update={"batch_size": recipe.batch_size, "accumulation_steps": accumulation}
        )
        == recipe
    )


def test_resolved_auto_recipe_is_a_valid_recipe() -> None:
    recipe = make_recipe(**AUTO, effective_batch_size=96, model=ResNet20()).with_micro_batch(24)
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    assert (recipe.batch_size, recipe.accumulation_steps) == (24, 4)


def test_only_fp16_needs_a_gpu() -> None:
    reasons = {name: make_recipe(precision=name).needs_cuda() for name in ("fp32", "bf16", "fp16")}
    assert reasons["fp32"] is reasons["bf16"] is None
    assert "CPU" in reasons["fp16"]


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "swats"])
@pytest.mark.parametrize("precision", ["half", "half_fp32_norms"])
def test_an_eps_whose_square_is_zero_in_fp16_is_refused(optimizer: str, precision: str) -> None:
    assert torch.tensor(2.4e-4, dtype=torch.float16).square() <= 2.0**-24, "the least above 0"
    make_recipe(precision=precision, optimizer={optimizer: {"lr": 1e-3, "eps": 2.5e-4}})
    for eps in (1e-8, 6e-8, 2.4e-4):
        with pytest.raises(ValidationError, match=r"eps must be at least 0\.00025 with precision"):
            make_recipe(precision=precision, optimizer={optimizer: {"lr": 1e-3, "eps": eps}})


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_torchs_own_graphs_and_accumulation_are_refused_and_never_made(mode: str) -> None:
    tree = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1, "batch_size": 8}
    fields = {**tree, "compile": True, "compile_mode": mode}
    growth = {"speedups": {"batch_growth": "batch_stages"}}
    for accumulating in ({"accumulation_steps": 2}, growth):
        with pytest.raises(ValidationError, match=f"with accumulation, not {mode}"):
            Recipe.model_validate({**fields, **accumulating})
    whole = Recipe.model_validate(fields)
    half = whole.with_micro_batch(4)
    assert half.compile_mode in ("default", "max-autotune-no-cudagraphs")
    assert Recipe.model_validate(half.model_dump(mode="json")) == half
    assert whole.with_micro_batch(8).compile_mode == mode


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PINNED, PAGED = Streaming(pin_memory=True), Streaming(pin_memory=False)


def make(**fields: Any) -> Recipe:
    return Recipe(model=ResNet20(), optimizer=Sgd(lr=0.1), epochs=1, batch_size=8, **{**fields})


def reason(recipe: Recipe, base: Recipe, *, device: torch.device, gpus: int = 0) -> str | None:
    return not_applicable(recipe, base, device=device, num_devices=gpus)


def test_pinned_memory_says_nothing_without_a_gpu() -> None:
    on, off = make(loader=PINNED), make(loader=PAGED)
    assert "there is none here" in str(reason(on, off, device=CPU))
    assert "there is none here" in str(reason(off, on, device=CPU))
    assert reason(on, off, device=CUDA, gpus=1) is None


def test_other_loader_is_a_change_of_its_own_though_it_pins_by_default() -> None:
    assert Streaming().pin_memory
    assert reason(make(loader=Streaming()), make(loader=Resident()), device=CPU) is None


def test_fp16_says_nothing_on_a_cpu_unless_the_base_has_it_too() -> None:
    fp16 = make(precision="fp16")
    assert "on a CPU" in str(reason(fp16, make(), device=CPU))
    assert reason(fp16, make(), device=CUDA, gpus=1) is None
    assert reason(make(precision="fp16", accumulation_steps=2), fp16, device=CPU) is None


@pytest.mark.parametrize(
    "change",
    [{"precision": "bf16"}, {"accumulation_steps": 2}, {"devices": 2}, {"loader": PAGED}],
)
def test_all_else_can_be_run_on_a_cpu(change: dict[str, Any]) -> None:
    assert reason(make(**change), make(), device=CPU) is None


def test_more_gpus_than_there_are_cannot_be_run() -> None:
    four = make(devices=4)
    assert reason(four, make(), device=CUDA, gpus=1) == "it takes 4 GPUs, and there is 1 here"
    assert reason(four, make(), device=CUDA, gpus=2) == "it takes 4 GPUs, and there are 2 here"
    assert reason(four, make(), device=CUDA, gpus=4) is None
