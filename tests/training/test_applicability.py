from typing import Any

import pytest
import torch

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.data.loaders.configs import Resident, Streaming
from tune_speed.training.recipe import Recipe, not_applicable

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
