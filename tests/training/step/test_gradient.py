"""Recorded steps, with a stand-in for CUDA graphs; `test_cuda` has the same with real ones."""

from collections.abc import Callable
from typing import Any

import pydantic
import pytest
import torch
from recorded_runs import RECORDED
from torch import Tensor
from training import CPU, make_images, make_workload, to_end

from tune_speed.components.speedups import SPEEDUPS
from tune_speed.core.records import RunResult
from tune_speed.data.split import Splits, channel_statistics
from tune_speed.training.build import Job
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe
from tune_speed.training.step import recorded

TREE: dict[str, Any] = {
    "model": {"resnet": {"depth": 8}},
    # A rate that fp32 has exactly: recorded steps read it from memory.
    "optimizer": {"sgd": {"lr": 0.0078125}},
    "epochs": 3,
    "batch_size": 8,
}


@pytest.fixture
def calls(recordings: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets steps be recorded on a CPU, as `recordings` does; says what the recorder did."""
    done: list[str] = []
    record_on_cpu = recorded.RECORDERS["cpu"]

    def record(
        call: Callable[[], list[Tensor]], device: torch.device, pool: Any
    ) -> recorded.Recorded:
        found = record_on_cpu(call, device, pool)

        def replay() -> None:
            done.append("replay")
            found.replay()

        done.append("record")
        return found._replace(replay=replay)

    monkeypatch.setitem(recorded.RECORDERS, "cpu", record)
    return done


def run(**fields: Any) -> RunResult:
    images = make_images(24, size=8, channels=3)
    mean, std = channel_statistics(images.pixels)
    splits = Splits(images, images, images, mean, std, 3, split_hash="s" * 16)
    recipe = Recipe.model_validate({**TREE, **fields})
    return to_end(train(Job(make_workload(), recipe, splits, seed=0, device=CPU)))


def curve(result: RunResult) -> list[tuple[float | None, float | None]]:
    return [(e.loss, e.train_loss) for e in result.evaluations]


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_steps_learn_to_the_bit_what_launched_ones_do(name: str, calls: list[str]) -> None:
    launched = curve(run(**RECORDED[name]))
    assert not calls
    assert curve(run(**RECORDED[name], cuda_graph=True)) == launched
    assert "record" in calls and "replay" in calls


def test_each_kind_of_step_is_recorded_once_and_before_the_first_step(
    calls: list[str],
) -> None:
    # 24 images in steps of 9: three micro-batches of 3, and two in the last step of an epoch.
    run(batch_size=3, accumulation_steps=3, cuda_graph=True)
    assert calls.count("record") == 2
    ahead = calls[: len(calls) - 3 * 3]  # 3 steps an epoch, 3 epochs
    assert ahead.count("record") == 2


def test_recordings_are_limited_in_number(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "MOST_KINDS", 1)
    launched = curve(run(batch_size=7))
    assert curve(run(batch_size=7, cuda_graph=True)) == launched
    assert calls.count("record") == 1


def test_without_a_recorder_for_the_device_steps_are_launched() -> None:
    assert "cpu" not in recorded.RECORDERS
    assert curve(run(cuda_graph=True)) == curve(run())


@pytest.mark.parametrize(
    "name", [name for name, kind in SPEEDUPS.items() if not kind.is_recordable]
)
def test_technique_whose_steps_differ_refuses_recording(name: str) -> None:
    fields = {"easiest_first": {"groups": [0, 0, 1]}, "meprop": {"conv_frac": 0.5}}.get(name, {})
    with pytest.raises(pydantic.ValidationError, match=f"cuda_graph must be false with {name}"):
        Recipe.model_validate(
            {**TREE, "cuda_graph": True, "speedups": {SPEEDUPS[name].slot: {name: fields}}}
        )


def test_several_devices_refuse_recording() -> None:
    with pytest.raises(pydantic.ValidationError, match="cuda_graph must be false with several"):
        Recipe.model_validate({**TREE, "cuda_graph": True, "devices": 2})
