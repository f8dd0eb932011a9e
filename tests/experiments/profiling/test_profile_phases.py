import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda_double.double import installed
from helpers.training.tiny import CPU, make_recipe, make_splits
from torch import Tensor
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from tune_speed.core.errors import StorageError
from tune_speed.data.loaders.configs import Streaming
from tune_speed.experiments.profiling import phases
from tune_speed.experiments.profiling.phases import PREFIX, Span, marks_of, phase_seconds, spans
from tune_speed.experiments.profiling.phases import record as record_steps
from tune_speed.experiments.profiling.pipeline import open_pipeline
from tune_speed.experiments.profiling.result import PHASES
from tune_speed.training.step.recorded import RECORDERS, Recorded, RecordedStep

MARKS: list[tuple[Any, float, float]] = [
    ("data_wait", 0.0, 10.0), ("forward", 10.0, 30.0), ("optimizer", 30.0, 40.0)
]  # fmt: skip


def us_of(work: list[Span]) -> dict[str, float]:
    found = phase_seconds(MARKS, work)
    return {phase: round(1e6 * s, 6) for phase, s in found.items() if s}


def test_device_that_keeps_up_with_the_host_takes_the_hosts_time() -> None:
    work = [Span(12.0, 13.0, 20.0), Span(31.0, 32.0, 35.0)]
    expected = {"data_wait": 10.0, "forward": 20.0, "optimizer": 10.0}
    assert us_of(work) == us_of([]) == expected


def test_device_behind_its_host_takes_its_own_time() -> None:
    """Kernels of the forward end at 90 µs, when the host has long launched the update's."""
    work = [Span(12.0, 15.0, 50.0), Span(29.0, 50.0, 90.0), Span(35.0, 90.0, 97.0)]
    assert us_of(work) == {"data_wait": 10.0, "forward": 80.0, "optimizer": 7.0}


def test_waiting_for_a_batch_is_hidden_where_the_device_has_work() -> None:
    marks = [("forward", 0.0, 5.0), ("data_wait", 5.0, 60.0), ("backward", 60.0, 65.0)]
    found = phase_seconds(marks, [Span(1.0, 2.0, 50.0)])  # type: ignore[arg-type]
    assert [round(1e6 * found[p]) for p in ("forward", "data_wait", "backward")] == [50, 10, 5]


def event(name: str, number: int, start: float, end: float, **more: Any) -> Any:
    fields = {"is_user_annotation": False, "cpu_parent": None, "device_type": DeviceType.CPU}
    at = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(name=name, id=number, time_range=at, **{**fields, **more})


def test_kernels_belong_to_the_phase_that_launched_them_from_any_thread() -> None:
    mark = event(f"{PREFIX}backward", 1, 0.0, 9.0, is_user_annotation=True)
    on_device = {"device_type": DeviceType.CUDA}
    events = [
        mark,
        event(f"{PREFIX}backward", 1, 20.0, 29.0, is_user_annotation=True, **on_device),
        event("aten::mm", 2, 1.0, 4.0, cpu_parent=mark),
        event("cudaLaunchKernel", 77, 2.0, 3.0),
        event("gemm", 77, 20.0, 29.0, **on_device),
    ]
    kernels, operations = spans(events)
    assert (kernels, operations) == ([Span(2.0, 20.0, 29.0)], [Span(1.0, 1.0, 4.0)])
    assert marks_of(events) == [("backward", 0.0, 9.0)]


@pytest.mark.parametrize("loader", [None, Streaming(workers=0)])
def test_recipe_has_all_phases_and_trains_nothing(loader: Streaming | None, tmp_path: Path) -> None:
    changes = {} if loader is None else {"loader": loader}
    recipe = make_recipe(batch_size=8, accumulation_steps=2, **changes)
    with open_pipeline(recipe, make_splits(20), seed=0, device=CPU) as pipeline:
        before = [parameter.clone() for parameter in pipeline.stepper.model.parameters()]
        began_s = time.perf_counter()
        trace = tmp_path / "below" / "trace.json"
        found = record_steps(pipeline.take, num_steps=4, device=CPU, trace=trace)
        took_s = time.perf_counter() - began_s
    # Ragged at an epoch's end: 16, 4, 16 and 4.
    assert found.num_samples == 40
    assert {p for p in PHASES if found.total_s[p] == 0} == {"forward_backward"}
    assert found.is_device_seen and 0 < found.busy_s < sum(found.total_s.values()) < took_s
    for parameter, was in zip(pipeline.stepper.model.parameters(), before, strict=True):
        assert torch.equal(parameter, was)
    names = {each.get("name") for each in json.loads(trace.read_text())["traceEvents"]}
    assert {f"{PREFIX}{phase}" for phase in PHASES[:4]} <= names and "aten::conv2d" in names


def test_trace_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trace = tmp_path / "file" / "trace.json"
    with pytest.raises(StorageError, match="cannot be written"):
        record_steps(lambda: 1, num_steps=1, device=CPU, trace=trace)


def test_slow_parts_are_found_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(batch_size=8, accumulation_steps=2)
    with open_pipeline(recipe, make_splits(32), seed=0, device=CPU) as pipeline:
        update, make = pipeline.stepper.optimizer.step, pipeline.loader._batches.make

        def slow(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
            def slowed(*given: Any, **named: Any) -> Any:
                time.sleep(seconds)
                return call(*given, **named)

            return slowed

        monkeypatch.setattr(pipeline.stepper.optimizer, "step", slow(update, 0.2))
        monkeypatch.setattr(pipeline.loader._batches, "make", slow(make, 0.1))
        found = record_steps(pipeline.take, num_steps=1, device=CPU)
    assert found.total_s["optimizer"] >= 0.2 and found.total_s["images"] >= 0.2
    assert found.busy_s < sum(found.total_s.values()) - 0.4


def test_recorded_steps_are_one_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder calls again where CUDA would replay."""

    def record(call: Callable[[], list[Tensor]], device: torch.device, pool: Any) -> Recorded:
        results = call()
        return Recorded(lambda: (call(), None)[1], results, pool)

    monkeypatch.setitem(RECORDERS, "cpu", record)
    monkeypatch.setattr(RecordedStep, "_refuse_nonsense", lambda *_: None)
    monkeypatch.setattr(torch.amp.GradScaler, "scale", lambda self, loss: loss)
    recipe = make_recipe(batch_size=8, accumulation_steps=2, cuda_graph=True)
    with open_pipeline(recipe, make_splits(32), seed=0, device=CPU) as pipeline:
        pipeline.take()
        # What is marked while a step is recorded is not called by a replay.
        monkeypatch.setattr(pipeline.stepper.scaler, "scale", lambda loss: loss)
        found = record_steps(pipeline.take, num_steps=2, device=CPU)
    assert {p for p in PHASES if found.total_s[p] == 0} == {
        "images", "forward", "backward", "optimizer"
    }  # fmt: skip
    assert found.total_s["forward_backward"] > 0


def test_steps_on_a_gpu_wait_for_nothing_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The double has no driver that the profiler could ask, so it records the host alone."""
    host = torch.profiler.ProfilerActivity.CPU
    monkeypatch.setattr(phases, "ProfilerActivity", SimpleNamespace(CPU=host, CUDA=host))
    with installed() as driver:
        device, waits = torch.device("cuda", 0), list[int]()
        recipe = make_recipe(batch_size=8, accumulation_steps=2, cuda_graph=False)
        with open_pipeline(recipe, make_splits(160), seed=0, device=device) as pipeline:
            pipeline.take()
            pipeline.take()
            for num_steps in (1, 2):
                before = driver.calls["synchronize"] + driver.calls["copy"]
                found = record_steps(pipeline.take, num_steps=num_steps, device=device)
                waits.append(driver.calls["synchronize"] + driver.calls["copy"] - before)
    assert found.total_s["forward"] > 0 and not found.is_device_seen
    # Before the first step and after the last one, by us and by the profiler.
    assert waits[0] == waits[1] == 4
