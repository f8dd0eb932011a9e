"""The whole path of a fractional trial on a GPU, with the GPUs that are not there."""

import gc
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_double.double import MIB, NAME, Driver, installed
from helpers.training.tiny import Tiny, TinyNetwork
from torch import Tensor, nn

from tune_speed.components.metrics.base import OF_RUN
from tune_speed.components.models import MODELS
from tune_speed.core.errors import DeviceFailed, SetUpFailed
from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.core.words import NoteKind, joined
from tune_speed.data.loaders import resident
from tune_speed.runtime.device import remembered
from tune_speed.runtime.reference_step import ReferenceStep
from tune_speed.training.autotune import step_options
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import finish, run_trial
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, CheckpointPlan, TrialSpec
from tune_speed.training.workload import Workload
from tune_speed.tuning.ray.node_query import set_up_device

SPLIT = {"validation_frac": 0.2, "train_samples": 60, "validation_samples": 30}
TREE: dict[str, Any] = {
    "model": {"resnet": {"depth": 8}},
    "optimizer": {"sgd": {"lr": 0.05}},
    "epochs": 2,
    "batch_size": 20,
}

LARGER = {"model": "resnet20", "epochs": 1}
"""What fills a small memory."""


def make_spec(
    *, device: str = "cuda", gpu: float = 0.25, others: int = 3, **fields: Any
) -> TrialSpec:
    workload = {"dataset": {"name": "digits"}, "target": {"value": 1.0}, "split": SPLIT}
    return TrialSpec(
        study="study",
        trial_id="t0000",
        params={},
        recipe=Recipe.model_validate({**TREE, **fields}),
        workload=Workload.model_validate(workload),
        workload_hash="w" * 16,
        space_hash="s" * 16,
        seed=0,
        allotment=Allotment(device=device, gpu_fraction=gpu, max_cotenants=others),
    )


def run(spec: TrialSpec, **options: Any) -> TrialRecord:
    return finish(run_trial(spec, refuse=(DeviceFailed,), **options), on_report=lambda _: None)


def curve(result: RunResult) -> list[tuple[float | None, float | None]]:
    return [(each.loss, each.train_loss) for each in result.evaluations]


def result_of(**fields: Any) -> RunResult:
    result = run(make_spec(**fields)).runs[0]
    assert result.status == Status.MISSED, result.traceback
    return result


@pytest.fixture(scope="module")
def on_cpu() -> RunResult:
    return result_of(device="cpu", gpu=0.0)


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
@pytest.mark.parametrize("records", [False, True])
def test_fractional_trial_learns_what_it_learns_on_a_cpu(
    name: str, records: bool, on_cpu: RunResult
) -> None:
    with installed(num_gpus=2, memory_gib=0.5) as driver:
        gpu = driver.gpus[1 if name == "cuda:1" else 0]
        result = result_of(device=name, cuda_graph=records)
        assert curve(result) == curve(on_cpu)
        assert (driver.num_nodes > 0) == records
        assert gpu.fraction == pytest.approx(0.9 * 0.25)
        assert str(result.device) == NAME
        assert result.memory_limit_gib == pytest.approx(0.9 * 0.25 * 0.5)
        assert result.peak_memory_gib is not None and 0 < result.peak_memory_gib < 0.1
        assert result.device_memory_gib is not None and result.device_memory_gib > 0
        used_frac = OF_RUN["device_memory_frac"](result)
        assert used_frac == pytest.approx(result.device_memory_gib / 0.5), "of the whole GPU"
        assert on_cpu.device_memory_gib is OF_RUN["device_memory_frac"](on_cpu) is None
        other = driver.gpus[0 if name == "cuda:1" else 1]
        assert (other.peak, other.fraction) == (0, 1.0)
        assert torch.cuda.current_stream(gpu.index).stream_id == 0


def test_recorded_steps_mix_images_as_a_cpu_does() -> None:
    fields: dict[str, Any] = {
        "augmentation": {"mixup": 0.2, "cutmix": 1.0},
        "class_weights": "balanced",
        "label_smoothing": 0.1,
        "speedups": {"loss": "bce"},
    }
    expected = curve(result_of(device="cpu", gpu=0.0, **fields))
    with installed() as driver:
        assert curve(result_of(cuda_graph=True, **fields)) == expected
        assert driver.num_nodes > 0


def test_waits_for_the_gpu_do_not_grow_with_the_tensors_of_a_network() -> None:
    """But for one each, which brings it there, and what is repeated where others were at work."""
    waits, tensors = list[int](), list[int]()
    for depth in (8, 14):
        with installed() as driver:
            result_of(cuda_graph=True, model={"resnet": {"depth": depth}})
            waits.append(driver.calls["copy"])
        network = MODELS["resnet"](depth=depth).build(in_channels=1, num_classes=10, image_size=8)
        tensors.append(len(network.state_dict()))
    assert 0 < waits[1] - waits[0] < 2 * (tensors[1] - tensors[0])


def test_what_is_remembered_comes_back_without_more_memory() -> None:
    with installed() as driver:
        gpu = driver.gpus[0]
        tensors = [torch.full((64, 64), float(value), device="cuda") for value in range(8)]
        restore = remembered(tensors)
        for tensor in tensors:
            tensor.zero_()
        gpu.peak = gpu.allocated
        restore()
        assert gpu.peak == gpu.allocated
        assert [float(tensor.mean()) for tensor in tensors] == [*range(8)]


def test_steps_are_recorded_with_the_first_bias_trained_and_frozen() -> None:
    """60 images in steps of 20: one kind of step for each half of the run."""
    fields: dict[str, Any] = {
        "model": {"speednet": {"width1": 4, "width2": 8, "width3": 8}},
        "cuda_graph": True,
    }
    runs, num_graphs = [], []
    for bias_frac in (1.0, 0.5):
        fields["speedups"] = {"init": {"whitening": {"frozen": True, "bias_frac": bias_frac}}}
        with installed(memory_gib=0.5) as driver:
            runs.append(curve(result_of(others=0, **fields)))
            num_graphs.append(driver.num_graphs)
        assert runs[-1] == curve(result_of(device="cpu", gpu=0.0, **fields))
    assert num_graphs[1] == 2 * num_graphs[0] > 0
    assert runs[0][1] == runs[1][1] and runs[0][2] != runs[1][2]


@pytest.mark.parametrize("name", ["radam", "lamb"])
def test_frozen_steps_and_those_after_them_are_recorded_by_kinds(name: str) -> None:
    fields: dict[str, Any] = {
        "model": {"resnet": {"depth": 8}},
        "freeze": {"until": "blocks.1", "epochs": 0.5},
        "layer_decay": 0.7,
        "optimizer": {"timm": {"name": name, "lr": 0.01}},
    }
    with installed(memory_gib=0.5) as driver:
        result = result_of(others=0, cuda_graph=True, **fields)
        num_graphs = driver.num_graphs
    assert any("launched" in str(note) for note in result.note) == (name == "lamb")
    assert num_graphs > 1
    losses = [loss for loss, _ in curve(result_of(device="cpu", gpu=0.0, **fields))]
    assert [loss for loss, _ in curve(result)] == pytest.approx(losses, rel=1e-5)


def test_recording_of_nothing_is_noticed() -> None:
    with installed() as driver:
        driver.loses_work = True
        result = run(make_spec(cuda_graph=True, others=0)).runs[0]
    assert result.status == Status.FAILED
    assert "gradients" in str(result.stop_reason)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`",
        "FIND was unable to find an engine to execute this computation",
    ],
)
def test_micro_batch_is_halved_where_the_fraction_ends(text: str) -> None:
    """And what is trained then is what a file could say: torch's own graphs do not accumulate."""
    fields = {"batch_size": 60, "compile": True, "compile_mode": "reduce-overhead", **LARGER}
    with installed(memory_gib=0.03) as driver:
        driver.out_of_memory = text
        record = run(make_spec(others=0, **fields))
    result, recipe = record.runs[0], Recipe.model_validate(record.recipe)
    assert result.status == Status.MISSED, result.traceback
    assert "micro-batch 60 ran out of memory" in str(result.stop_reason)
    assert recipe.batch_size == 30 and recipe.samples_per_step == 60
    assert recipe.compile_mode == "default"
    assert result.peak_memory_gib is not None and result.memory_limit_gib is not None
    assert result.peak_memory_gib <= result.memory_limit_gib


def test_process_that_cannot_be_set_up_says_for_what_and_why() -> None:
    with installed() as driver:
        driver.error = "CUDA error: unknown error"
        with pytest.raises(SetUpFailed) as failed:
            set_up_device(make_spec().allotment, None)
    said = str(failed.value)
    assert "a trial's process must be set up for `cuda` with 0.25 of a GPU" in said
    assert "AcceleratorError: CUDA error: unknown error" in said


def test_without_room_for_one_image_the_outcome_is_oom() -> None:
    with installed(memory_gib=0.005):
        assert run(make_spec(**LARGER)).status == Status.OOM


SMALL = {"plain_cnn": {"width": 4, "batch_norm": True}}
"""A network of convolutions for what its size does not change."""
AUTO = {"cuda_graph": "auto", "channels_last": "auto", "optimizer_kernels": "auto"}


@pytest.fixture
def own_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of what `auto` was settled to before."""
    monkeypatch.setattr(step_options, "default_cache_dir", lambda: tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("own_choices")
@pytest.mark.parametrize("name", ["cuda_graph", "compile"])
def test_what_cannot_be_recorded_or_compiled_is_passed_over_with_a_note(name: str) -> None:
    with installed() as driver:
        driver.refuses_capture = driver.refuses_compiling = True
        for _ in ("measured", "known"):
            record = run(make_spec(model=SMALL, **{name: "auto"}))
            result = record.runs[0]
            assert result.status == Status.MISSED, result.traceback
            assert record.recipe[name] is False
            assert f"{name} cannot be True: " in joined(result.note)
        assert not torch.cuda.is_current_stream_capturing()
        assert torch.cuda.current_stream().stream_id == 0
        driver.refuses_capture = False
        assert result_of(model=SMALL, cuda_graph=True).status == Status.MISSED


@pytest.mark.slow
@pytest.mark.usefixtures("own_choices")
@pytest.mark.parametrize(
    "fields",
    [
        {"batch_size": "auto"},
        {"batch_size": None, "accumulation_steps": "auto", "effective_batch_size": 20},
    ],
)
def test_auto_is_measured_with_the_kernels_of_the_training(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed() as driver:
        assert flags_of(driver, monkeypatch, deterministic=True, **fields) == {(True, False)}


@pytest.mark.slow
@pytest.mark.usefixtures("own_choices")
def test_choice_of_other_kernels_is_not_taken_over_but_measured_with_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with installed() as driver:
        for number, deterministic in enumerate((True, False), start=1):
            before = driver.num_graphs
            flags = flags_of(driver, monkeypatch, deterministic=deterministic, **AUTO)
            assert flags == {(deterministic, not deterministic)}
            # How many more were recorded depends on which was the faster one.
            assert driver.num_graphs > before
            assert len(list(tmp_path.glob("step_choices/*.json"))) == number


def flags_of(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, *, deterministic: bool, **fields: Any
) -> set[tuple[bool, bool]]:
    """Returns `deterministic` and `benchmark` of all convolutions of a trial.

    Before it, this process has them the other way round. The reference step has its own.
    """
    take = ReferenceStep._take

    def unseen(reference: ReferenceStep) -> float:
        seen = set(driver.flags)
        took_s = take(reference)
        driver.flags &= seen
        return took_s

    monkeypatch.setattr(ReferenceStep, "_take", unseen)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", not deterministic)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", deterministic)
    driver.flags.clear()
    result_of(model=SMALL, deterministic=deterministic, **fields)
    return driver.flags


@pytest.mark.slow
def test_memory_is_flat_over_the_trials_of_a_process() -> None:
    """And given back: what one trial leaves is the workspace of its streams."""
    warm, peaks, left = set[str](), list[float](), list[int]()
    with installed() as driver:
        for _ in range(8):
            spec = make_spec(model=SMALL, others=0, epochs=1, cuda_graph=True)
            result = run(spec, warm=warm).runs[0]
            peaks.append(result.peak_memory_gib or 0.0)
            del result
            gc.collect()
            left.append(driver.gpus[0].allocated)
    assert max(peaks) <= 1.01 * peaks[0]
    assert left == left[:1] * 8 and left[0] < 4 * MIB


class Asserts(Tiny):
    """A network whose kernels assert in training."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        return AssertsNetwork(self, in_channels, num_classes)


class AssertsNetwork(TinyNetwork):
    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        self.num_passes += 1
        return (
            logits[:, torch.full((10,), 99, device=images.device)]
            if self.num_passes > 20
            else logits
        )


def test_lost_device_ends_the_process_and_no_outcome_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MODELS, "asserts", Asserts)
    # Launched: what is recorded asks its module no more.
    spec = make_spec(model="asserts", others=0, epochs=10, cuda_graph=False)
    with installed():
        with pytest.raises(DeviceFailed, match="AcceleratorError: CUDA error: device-side assert"):
            run(spec)
        with pytest.raises(DeviceFailed, match="device-side assert"):
            run(make_spec())  # What would follow in the same process.
    with installed():
        record = finish(run_trial(spec), on_report=lambda _: None)
        assert record.status == Status.FAILED and record.runs[0].evaluations


def test_batches_that_are_streamed_are_those_that_lie_on_the_device(on_cpu: RunResult) -> None:
    with installed():
        assert curve(result_of(loader={"dataloader": {"workers": 0}}, others=0)) == curve(on_cpu)


def test_loader_is_chosen_before_the_step_is_keyed_and_the_record_says_why(
    on_cpu: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set[str](), set[str]()
    with installed():
        given = run(make_spec(loader="resident"), warm=keys[0])
        auto = run(make_spec(loader="auto"), warm=keys[1])
        monkeypatch.setitem(resident.SET_SHARE, "cuda", 0.0)
        streamed = run(make_spec(loader="auto", others=0))
    assert auto.recipe == given.recipe and list(auto.recipe["loader"]) == ["resident"]
    assert keys[0] == keys[1] != set()
    assert isinstance(streamed.recipe["loader"]["dataloader"]["workers"], int)
    for record, way in ((auto, "resident"), (streamed, "mapped")):
        (note,) = [note for note in record.runs[0].note if note.kind is NoteKind.LOADER]
        assert note.figures["way"] == way and curve(record.runs[0]) == curve(on_cpu)


def test_set_that_does_not_fit_is_refused_and_no_batch_halved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, uploads = list[torch.device](), list[torch.device]()

    def full(pixels: object, device: torch.device) -> Tensor:
        uploads.append(device)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def none_free(device: torch.device) -> int:
        asked.append(device)
        return 0

    with installed():
        original = resident.on_device
        monkeypatch.setattr(
            resident, "on_device", lambda p, d: (full if len(p) == 60 else original)(p, d)
        )
        while_copied = run(make_spec()).runs[0]
        monkeypatch.setattr(resident, "free_bytes", none_free)
        before = run(make_spec()).runs[0]
    assert len(uploads) == 1 and len(asked) == 1
    for result in (while_copied, before):
        assert result.status == Status.FAILED and "DataError" in str(result.stop_reason.figures)
        assert "loader: auto" in str(result.stop_reason) and "GiB" in str(result.stop_reason)


def test_trial_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    spec = make_spec(others=0, epochs=4)
    plan = CheckpointPlan(place=str(tmp_path / "trial.ckpt"), every_s=0)
    saved, steps = spec.model_copy(update={"checkpoint": plan}), count()
    with installed():
        with pytest.raises(Interrupted):
            run(saved, interrupt=lambda: next(steps) == 8)
        resumed, whole = run(saved).runs[0], run(spec).runs[0]
    assert resumed.status == Status.MISSED, resumed.traceback
    assert curve(resumed) == curve(whole) and len(whole.evaluations) == 5


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("loader", ["resident", {"dataloader": {"workers": 1}}])
def test_crops_and_changes_on_a_gpu_are_those_of_a_cpu(records: bool, loader: Any) -> None:
    fields: dict[str, Any] = {
        "image_size": 12,
        "eval_size": 14,
        "crop_pct": 0.9,
        "loader": loader,
        "augmentation": {"crop": {"random_resized": {"scale": 0.3}}, "flip": "random"},
    }
    expected = curve(result_of(device="cpu", gpu=0.0, **fields))
    with installed():
        found = curve(result_of(cuda_graph=records, **fields))
    # Pixels that lie halfway between two values are rounded either way.
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[0] == pytest.approx(theirs[0], rel=0.02)
