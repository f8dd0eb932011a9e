"""What must hold on a GPU as it does on a CPU; skipped where there is none.

    python -m pytest tests/runtime/test_cuda.py

The loop has no branch of its own for CUDA, so each claim is tried with the code that the other
tests try.
"""

import itertools
import math
from typing import Any

import pydantic
import pytest
import torch
from helpers.components.techniques import RECORDED, SETTINGS, TECHNIQUES, Everything, changes
from helpers.training.tiny import CPU, make_images, make_recipe, make_splits, make_workload, to_end

from tune_speed.components.models import MODELS
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.schedules import SCHEDULES
from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.data import LOADERS
from tune_speed.data.loaders.configs import Streaming
from tune_speed.data.split import Splits, channel_statistics
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.training.autotune import step_options
from tune_speed.training.build import Job
from tune_speed.training.loop import train
from tune_speed.training.objective import finish, run_trial
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, TrialSpec
from tune_speed.training.workload import Target, Workload

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.slow,
]
CUDA = torch.device("cuda")
TREE: dict[str, Any] = {
    "model": "resnet20",
    # A rate that fp32 has exactly: recorded steps read it from memory.
    "optimizer": {"sgd": {"lr": 0.0625}},
    "epochs": 2,
    "batch_size": 8,
    "deterministic": True,
}
RATES = {name: {"lr": 0.01} for name in ("sgd", "adam", "adamw", "swats", "muon", "timm")}
NETWORKS = [name for name in MODELS if name not in ("timm", "torchvision")]
FP16_SCALE = {"init_loss_scale": 256.0}
GPU_SETTINGS = {**SETTINGS, "fp16": {"precision": "fp16"}}


def run_on(device: torch.device, **fields: Any) -> RunResult:
    return to_end(
        train(Job(make_workload(), make_recipe(**fields), make_splits(), seed=0, device=device))
    )


def run_tree(device: torch.device, size: int = 32, **fields: Any) -> RunResult:
    images = make_images(24, size=size, channels=3)
    mean, std = channel_statistics(images.pixels)
    splits = Splits(images, images, images, mean, std, 3, split_hash="s" * 16)
    recipe = Recipe.model_validate({**TREE, **fields})
    return to_end(train(Job(make_workload(), recipe, splits, seed=0, device=device)))


def losses(result: RunResult) -> list[float]:
    found = [e.loss for e in result.evaluations]
    assert found and all(loss is not None and math.isfinite(loss) for loss in found)
    return [loss for loss in found if loss is not None]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_takes_the_steps_that_it_takes_on_a_cpu(name: str) -> None:
    optimizer = Recipe.model_validate({**TREE, "optimizer": {name: RATES.get(name, {})}}).optimizer
    gpu, cpu = (run_on(device, optimizer=optimizer, epochs=3.0) for device in (CUDA, CPU))
    assert losses(gpu) == pytest.approx(losses(cpu), abs=5e-3)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_trains(name: str) -> None:
    losses(run_tree(CUDA, lr_schedule={name: {}}))


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_pinning_and_workers_change_no_loss(pin_memory: bool, workers: int) -> None:
    loader = Streaming(workers=workers, pin_memory=pin_memory)
    assert losses(run_on(CUDA, loader=loader)) == losses(run_on(CUDA, loader=Streaming()))


@pytest.mark.parametrize("name", LOADERS)
def test_loader_gives_what_it_gives_on_a_cpu(name: str) -> None:
    loader = Recipe.model_validate({**TREE, "loader": {name: {}}}).loader
    gpu, cpu = (run_on(device, loader=loader) for device in (CUDA, CPU))
    assert losses(gpu) == pytest.approx(losses(cpu), abs=5e-3)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_technique_trains_and_repeats_itself(name: str) -> None:
    first, again = (run_on(CUDA, model=Everything(), epochs=0.7, **changes(name)) for _ in "ab")
    assert first.status == Status.MISSED and first.steps >= 2
    assert losses(first) == losses(again)


@pytest.mark.parametrize(("name", "setting"), list(itertools.product(TECHNIQUES, GPU_SETTINGS)))
def test_technique_goes_with_each_setting_or_says_why_not(name: str, setting: str) -> None:
    try:
        fields = {**changes(name), **GPU_SETTINGS[setting]}
        result = run_on(CUDA, model=Everything(), epochs=0.7, **fields)
    except pydantic.ValidationError as refusal:
        assert name in str(refusal)
        return
    assert result.status in (Status.MISSED, Status.DIVERGED)


# From 65536 on, fp16 would leave out its first steps until the scale has come down.
@pytest.mark.parametrize("mixed", [{"precision": "bf16"}, {"precision": "fp16", **FP16_SCALE}])
def test_mixed_precision_stays_near_fp32(mixed: dict[str, Any]) -> None:
    exact = losses(run_on(CUDA, precision="fp32", epochs=6.0))
    assert losses(run_on(CUDA, epochs=6.0, **mixed)) == pytest.approx(exact, abs=0.05)


def test_accumulation_gives_the_losses_of_one_large_batch() -> None:
    whole = losses(run_on(CUDA, batch_size=8, epochs=3.0))
    parts = losses(run_on(CUDA, batch_size=2, accumulation_steps=4, epochs=3.0))
    assert parts == pytest.approx(whole, abs=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, within its compiler
def test_compiled_run_learns_what_an_eager_one_does() -> None:
    eager = losses(run_tree(CUDA))
    assert losses(run_tree(CUDA, compile=True)) == pytest.approx(eager, abs=0.05)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
def test_compile_modes_learn_what_an_eager_run_does(mode: str) -> None:
    eager = losses(run_tree(CUDA))
    assert losses(run_tree(CUDA, compile=True, compile_mode=mode)) == pytest.approx(eager, abs=0.05)


def test_kernels_of_the_optimizer_give_the_same_losses() -> None:
    fused, foreach = (run_tree(CUDA, optimizer_kernels=way) for way in ("fused", "foreach"))
    assert losses(foreach) == pytest.approx(losses(fused), abs=1e-3)


def test_how_a_step_is_computed_is_settled_by_measurement() -> None:
    auto = {"channels_last": "auto", "cuda_graph": "auto", "optimizer_kernels": "auto"}
    images = make_images(24, size=32, channels=3)
    mean, std = channel_statistics(images.pixels)
    splits = Splits(images, images, images, mean, std, 3, split_hash="s" * 16)
    recipe = Recipe.model_validate({**TREE, **auto})
    alone = Turnstile(None, why_not="alone")
    settled = step_options.resolved(recipe, splits, device=CUDA, turnstile=alone)
    assert not step_options.unsettled(settled)
    assert settled.cuda_graph is True  # Small steps are bound by their launches.


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_steps_learn_to_the_bit_what_launched_ones_do(name: str) -> None:
    fields = {"epochs": 4, "optimizer": {"sgd": {"lr": 0.0078125}}, **RECORDED[name]}
    launched, recorded = (
        run_tree(CUDA, cuda_graph=cuda_graph, **fields) for cuda_graph in (False, True)
    )
    assert losses(recorded) == losses(launched)


def test_recorded_steps_learn_with_loss_scaling_too() -> None:
    fields = {"precision": "fp16", "clip_norm": 0.5, "epochs": 4}
    launched, recorded = (run_tree(CUDA, cuda_graph=yes, **fields) for yes in (False, True))
    assert losses(recorded) == losses(launched)


def test_recorded_steps_draw_new_dropout_masks_each_time_and_repeat_themselves() -> None:
    fields = {"epochs": 3, "model": {"resnet20": {"dropout": 0.5}}, "cuda_graph": True}
    first, again = run_tree(CUDA, **fields), run_tree(CUDA, **fields)
    assert losses(first) == losses(again)
    assert losses(first) != losses(run_tree(CUDA, **{**fields, "model": "resnet20"}))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # as above
def test_compiled_steps_can_be_recorded() -> None:
    compiled = losses(run_tree(CUDA, compile=True))
    assert losses(run_tree(CUDA, compile=True, cuda_graph=True)) == compiled


def test_loss_scaling_and_clipping_go_together() -> None:
    losses(run_on(CUDA, precision="fp16", clip_norm=0.5, clip_value=0.1, epochs=4.0))


@pytest.mark.parametrize("name", NETWORKS)
def test_network_trains_in_bf16(name: str) -> None:
    optimizer = {"sgd": {"lr": 1e-4}}  # Nets without norms, in training for three images a class.
    losses(run_tree(CUDA, size=64, model={name: {}}, precision="bf16", optimizer=optimizer))


def run_digits(*, gpu_fraction: float = 1.0, **fields: Any) -> TrialRecord:
    workload = Workload.model_validate({"dataset": "digits", "target": Target(value=0.999)})
    spec = TrialSpec(
        study="cuda",
        trial_id="t0000",
        params={},
        recipe=Recipe.model_validate({**TREE, "epochs": 1, **fields}),
        workload=workload,
        workload_hash="w" * 8,
        space_hash="s" * 8,
        seed=0,
        allotment=Allotment(device="cuda", gpu_fraction=gpu_fraction),
    )
    return finish(run_trial(spec), on_report=lambda _: None)


def test_micro_batch_is_halved_until_it_fits() -> None:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.0045)
    try:
        run = run_digits(model={"resnet18": {"stem": "cifar"}}, batch_size=1024).runs[0]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert run.status in (Status.MISSED, Status.REACHED), (run.stop_reason, run.traceback)
    assert run.batch_size is not None and run.batch_size < 1024
    assert run.batch_size * (run.accumulation_steps or 1) == 1024


def test_record_says_what_the_gpu_had() -> None:
    run = run_digits(batch_size=128).runs[0]
    assert torch.cuda.get_device_name(0) in str(run.device)
    assert run.peak_memory_gib is not None and 0 < run.peak_memory_gib < 1
    assert run.memory_limit_gib is not None and run.memory_limit_gib > 1
    assert run.clocks.train_s > 0 and run.images_per_s is not None
