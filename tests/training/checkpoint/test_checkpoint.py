import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.components.techniques import FIELDS, SETTINGS, TECHNIQUES, Everything, changes
from helpers.training.checkpoints import (
    assert_same_run,
    break_off,
    curve_of,
    disturb,
    interrupt_at,
    known_models,
    make_case,
    make_spec,
    open_checkpoints,
    run_on,
    to_record,
)
from helpers.training.tiny import Tiny, TinyNetwork, make_recipe
from torch import nn

from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.speedups.base import SpeedupConfig
from tune_speed.core.records import CLOCKED, Status, StepTime
from tune_speed.core.words import Note, joined
from tune_speed.runtime.clock import Clock
from tune_speed.training import objective
from tune_speed.training.checkpoint import checkpoints as checkpoint
from tune_speed.training.checkpoint import store as checkpoint_file
from tune_speed.training.checkpoint.store import (
    BadCheckpoint,
    Header,
    head,
    saved_step,
    split,
    write,
)
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import run_trial
from tune_speed.training.trial import CheckpointPlan, TrialSpec


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    known_models(monkeypatch, tiny=Tiny)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder / "t0000.ckpt"


def rewrite(place: Path, *, payload: bytes | None = None, **header: Any) -> None:
    """Writes a whole checkpoint with another content, digest included."""
    old, content = split(place.read_bytes())
    payload = bytes(content) if payload is None else payload
    new = old.model_copy(update={"num_bytes": len(payload), **header})
    with place.open("wb") as file:
        write(file, head(new, io.BytesIO(payload)), io.BytesIO(payload))


# --- Going on


def test_trial_goes_on_and_its_record_is_that_of_a_whole_run(place: Path) -> None:
    whole = to_record(make_spec(None, model={"dropout": 0.3}))
    spec = make_spec(place, model={"dropout": 0.3})
    standing = break_off(spec)
    assert saved_step(str(place)) == 8
    record = to_record(spec)
    assert curve_of(record) == curve_of(whole)
    run = record.runs[0]
    assert joined(run.note) == "resumed at step 8 of 16" and joined(whole.runs[0].note) == ""
    assert (run.status, run.steps, run.samples) == (Status.MISSED, 16, 240)
    assert run.flop == whole.runs[0].flop is not None
    assert whole.finished_at <= record.started_at == standing.started_at < record.finished_at
    assert run.evaluations[:3] == standing.runs[0].evaluations
    assert run.clocks.setup_s > standing.runs[0].clocks.setup_s


def test_every_report_of_a_resumed_trial_has_the_whole_curve(place: Path) -> None:
    break_off(make_spec(place))
    report = next(trial := run_trial(make_spec(place)))
    trial.close()
    assert [e.step for e in report.runs[0].evaluations] == [0, 4, 8, 12]
    assert joined(report.runs[0].note) == "resumed at step 8 of 16"


@pytest.mark.parametrize(
    ("model", "recipe", "status"),
    [
        ({}, {}, Status.MISSED),
        ({"crash_after": 15}, {}, Status.FAILED),
        ({"most_images": 0}, {}, Status.OOM),
        ({}, {"optimizer": {"sgd": {"lr": 1e30}}}, Status.DIVERGED),
    ],
)
def test_nothing_is_left_of_a_trial_with_an_outcome(place, model, recipe, status):
    record = to_record(make_spec(place, model=model, **recipe))
    assert record.status == status
    assert list(place.parent.iterdir()) == []


def test_trial_that_is_stopped_leaves_nothing(place: Path) -> None:
    trial = run_trial(make_spec(place))
    next(trial)
    assert place.exists()
    with pytest.raises(StopIteration) as end:
        trial.send("too slow")
    assert end.value.value.status == Status.CAPPED
    assert not place.exists()


def test_interrupted_trial_is_saved_where_it_stands(place: Path) -> None:
    whole = to_record(make_spec(None))
    spec = make_spec(place, trial={"checkpoint": CheckpointPlan(place=str(place), every_s=1e6)})
    with pytest.raises(Interrupted):
        to_record(spec, interrupt=interrupt_at(6))
    assert saved_step(str(place)) == 6
    record = to_record(spec)
    assert joined(record.runs[0].note) == "resumed at step 6 of 16"
    assert curve_of(record) == curve_of(whole)


def test_run_is_saved_no_more_often_than_asked(place: Path) -> None:
    spec = make_spec(place, trial={"checkpoint": CheckpointPlan(place=str(place), every_s=1e6)})
    break_off(spec)
    assert not place.exists()


def test_run_without_a_place_saves_nothing_and_reads_nothing(tmp_path: Path) -> None:
    break_off(make_spec(None))
    assert to_record(make_spec(None)).runs[0].note == ()


# --- Its clock


class FakeTime:
    def __init__(self, begin: float) -> None:
        self.seconds = begin

    def clock(self) -> Clock:
        return Clock(synchronize=lambda: None, now=lambda: self.seconds)


def test_training_clock_goes_on_where_it_was(place: Path) -> None:
    """Steps of 1 s, a break of 1,000 s, and each process with a clock of its own."""
    case = make_case(make_recipe(epochs=4.0))

    def times(close_after: int | None, begin: float) -> list[float]:
        time_, checkpoints = FakeTime(begin), open_checkpoints(place)

        def step() -> bool:
            time_.seconds += 1.0
            return False

        ended = run_on(
            case,
            checkpoints=checkpoints,
            close_after=close_after,
            interrupt=step,
            clock=time_.clock(),
        )
        if ended is None:
            return []
        assert ended.result.clocks.train_s == 12.0
        assert ended.result.clocks.wall_s == 12.0
        return [e.train_s for e in ended.result.evaluations]

    assert times(None, 0.0) == [0.0, 3.0, 6.0, 9.0, 12.0]
    times(2, 50.0)
    assert times(None, 1050.0) == [0.0, 3.0, 6.0, 9.0, 12.0]


def test_time_before_the_first_step_is_counted_once(place: Path) -> None:
    case = make_case(make_recipe(epochs=4.0, speedups={"init": {"pretrain_subset": {"part": 0.5}}}))
    run_on(case, checkpoints=open_checkpoints(place), close_after=2)
    first = open_checkpoints(place).progress
    assert first is not None and first.init_s > 0
    ended = run_on(case, checkpoints=open_checkpoints(place))
    assert ended is not None
    assert ended.result.init_s == first.init_s
    assert ended.result.evaluations[2] == first.evaluations[2]


def test_limit_of_training_time_counts_what_was_before_the_break(place: Path) -> None:
    case = make_case(make_recipe(epochs=4.0), max_train_s=7.5)
    for close_after, begin in ((2, 0.0), (None, 100.0)):
        time_ = FakeTime(begin)

        def step(time_: FakeTime = time_) -> bool:
            time_.seconds += 1.0
            return False

        ended = run_on(
            case,
            checkpoints=open_checkpoints(place),
            close_after=close_after,
            interrupt=step,
            clock=time_.clock(),
        )
    assert ended is not None
    assert (ended.result.status, ended.result.steps) == (Status.CAPPED, 8)


def test_shared_run_goes_on_with_its_step_time_and_company(place: Path) -> None:
    spec = make_spec(place)
    shared = spec.allotment.model_copy(update={"max_cotenants": 1})
    spec = spec.model_copy(update={"allotment": shared})
    standing = break_off(spec).runs[0]
    (step_time,) = standing.step_times
    # Another step time is known by now: the run's own holds.
    other = StepTime.model_validate({**step_time.model_dump(), "step_s": 100.0})
    run = to_record(spec.model_copy(update={"step_times": (other,)})).runs[0]
    assert run.timing == standing.timing and run.timing in CLOCKED
    assert run.step_times == (step_time,)
    assert [e.train_s for e in run.evaluations] == [
        e.samples / 16 * step_time.step_s for e in run.evaluations
    ]


# --- The recipe that ran


@pytest.mark.slow
def test_micro_batch_that_fits_is_gone_on_with(place: Path) -> None:
    whole = to_record(make_spec(None, model={"most_images": 8}))
    spec = make_spec(place, model={"most_images": 8})
    break_off(spec)
    record = to_record(spec)
    run = record.runs[0]
    assert (run.batch_size, run.accumulation_steps) == (8, 2)
    assert joined(run.note) == "resumed at step 8 of 16"
    assert run.stop_reason == whole.runs[0].stop_reason
    assert str(run.stop_reason).endswith("(micro-batch 16 ran out of memory, 8 did not)")
    assert curve_of(record) == curve_of(whole)


@pytest.mark.slow
def test_what_was_auto_is_not_measured_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"batch_size": None, "accumulation_steps": "auto", "effective_batch_size": 16}
    spec = make_spec(place, **fields)
    standing = break_off(spec)
    monkeypatch.setattr(objective, "fastest", None)  # Would fail if it was called.
    record = to_record(spec)
    assert joined(record.runs[0].note) == "resumed at step 8 of 16"
    assert record.recipe == standing.recipe and record.runs[0].traceback is None


@pytest.mark.slow
def test_run_that_runs_out_of_memory_once_resumed_begins_anew_with_less(place, monkeypatch):
    class Shrunk(Tiny):
        def network(self, **shape: int) -> nn.Module:
            return TinyNetwork(self.model_copy(update={"most_images": 8}), 1, 10)

    break_off(make_spec(place))
    known_models(monkeypatch, tiny=Shrunk)
    record = to_record(make_spec(place))
    whole = to_record(make_spec(None))
    assert curve_of(record) == curve_of(whole)
    assert (record.runs[0].batch_size, record.runs[0].note) == (8, ())


def test_checkpoint_of_a_micro_batch_that_ran_out_of_memory_is_not_used(place: Path) -> None:
    break_off(make_spec(place))
    record = to_record(make_spec(place, batch_size=8, accumulation_steps=2))
    assert "memory ran out with its micro-batch" in joined(record.runs[0].note)
    assert record.runs[0].batch_size == 8


# --- Checkpoints that are not to be used


def other_version(spec: TrialSpec, place: Path) -> TrialSpec:
    identity = {**split(place.read_bytes())[0].identity, "version of torch": "1.0"}
    rewrite(place, identity=identity)
    return spec


def other_device(spec: TrialSpec, place: Path) -> TrialSpec:
    identity = {**split(place.read_bytes())[0].identity, "device": "NVIDIA H200"}
    rewrite(place, identity=identity)
    return spec


def cut_off(spec: TrialSpec, place: Path) -> TrialSpec:
    place.write_bytes(place.read_bytes()[:-1])
    return spec


def flipped(spec: TrialSpec, place: Path) -> TrialSpec:
    content = bytearray(place.read_bytes())
    content[-3000] ^= 1
    place.write_bytes(content)
    return spec


def state_of(place: Path) -> dict[str, Any]:
    return checkpoint.load(split(place.read_bytes())[1])


def with_state(place: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    state = state_of(place)
    change(state)
    file = io.BytesIO()
    torch.save(state, file)
    rewrite(place, payload=file.getvalue())


def other_shapes(spec: TrialSpec, place: Path) -> TrialSpec:
    with_state(place, lambda s: s["weights"].update({"conv.bias": torch.zeros(5)}))
    return spec


def no_optimizer(spec: TrialSpec, place: Path) -> TrialSpec:
    with_state(place, lambda s: s.update({"optimizer": {}}))
    return spec


def random_state_of_nothing(spec: TrialSpec, place: Path) -> TrialSpec:
    with_state(place, lambda s: s["ranks"][0].update({"random": {"cpu": torch.zeros(3)}}))
    return spec


def no_progress(spec: TrialSpec, place: Path) -> TrialSpec:
    with_state(place, lambda s: s.update({"progress": "{}"}))
    return spec


def with_progress(place: Path, **fields: Any) -> None:
    def change(state: dict[str, Any]) -> None:
        state["progress"] = json.dumps({**json.loads(state["progress"]), **fields})

    with_state(place, change)


def past_its_end(spec: TrialSpec, place: Path) -> TrialSpec:
    with_progress(place, steps=16)
    rewrite(place, step=16)
    return spec


def never_evaluated(spec: TrialSpec, place: Path) -> TrialSpec:
    with_progress(place, evaluations=[])
    return spec


def timed_in_other_steps(spec: TrialSpec, place: Path) -> TrialSpec:
    step_time = {"key": "k", "step_s": 1.0, "low_s": 1.0, "high_s": 1.0, "num_steps": 1}
    step_time["measured_in"] = "x/y"
    phase = {"shape": [1, 1, 1, 1.0, 0], "step_time": step_time}
    with_progress(place, phases=[{**phase, "samples_per_step": 16, "samples": 128}])
    return spec


def nothing(spec: TrialSpec, place: Path) -> TrialSpec:
    rewrite(place, payload=b"")
    return spec


def other_recipe(spec: TrialSpec, place: Path) -> TrialSpec:
    rewrite(place, recipe={"model": "os.system"})
    return spec


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda spec, place: spec.model_copy(update={"seed": 1}), "its seed is 0, not 1"),
        (lambda spec, place: spec.model_copy(update={"trial_id": "t1"}), "its trial is t0000"),
        (
            lambda spec, place: make_spec(place, optimizer={"sgd": {"lr": 0.2}}),
            "its specification is",
        ),
        (other_version, "its version of torch is 1.0, not"),
        (other_device, "its device is NVIDIA H200, not cpu"),
        (cut_off, "it is cut off"),
        (flipped, "its digest is another"),
        (other_shapes, "it does not fit"),
        (no_optimizer, "it does not fit"),
        (random_state_of_nothing, "it does not fit"),
        (no_progress, "it does not fit"),
        (past_its_end, "it is at step 16 of 16"),
        (never_evaluated, "it is at step 8 of 16"),
        (timed_in_other_steps, "its step times are of other steps"),
        (nothing, "its content cannot be read"),
        (other_recipe, "it does not fit"),
    ],
)
def test_trial_begins_anew_and_says_why(place, change, reason):
    spec = make_spec(place)
    break_off(spec)
    spec = change(spec, place)
    record = to_record(spec)
    assert record.status == Status.MISSED
    assert joined(record.runs[0].note).startswith(
        "begun anew, as its checkpoint could not be used: "
    )
    assert reason in joined(record.runs[0].note)
    fresh = to_record(spec.model_copy(update={"checkpoint": None}))
    assert curve_of(record) == curve_of(fresh)
    assert not place.exists()


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_code_in_a_checkpoint_is_not_run(place: Path, tmp_path: Path) -> None:
    break_off(make_spec(place))
    file = io.BytesIO()
    torch.save({"progress": Evil(tmp_path / "ran")}, file)
    rewrite(place, payload=file.getvalue())
    assert "cannot be read: UnpicklingError" in joined(to_record(make_spec(place)).runs[0].note)
    assert not (tmp_path / "ran").exists()


def test_place_that_is_a_folder_costs_no_trial(tmp_path: Path) -> None:
    (tmp_path / "t0000.ckpt").mkdir()
    record = to_record(make_spec(tmp_path / "t0000.ckpt"))
    assert record.status == Status.MISSED
    assert "begun anew: the checkpoint" in joined(record.runs[0].note)
    assert "not saved at step 12" in joined(record.runs[0].note)


def test_folder_that_is_not_there_costs_no_trial_and_is_noted_once(tmp_path: Path) -> None:
    record = to_record(make_spec(tmp_path / "away" / "c" / "t0000.ckpt"))
    assert record.status == Status.MISSED
    assert joined(record.runs[0].note).count("not saved") == 1


def test_failed_saves_are_tried_less_and_less_often(tmp_path: Path) -> None:
    """On a clock of the test's: 1 s a look, saved every second."""
    now = iter(range(1000))
    checkpoints = open_checkpoints(
        tmp_path / "away" / "c" / "x", every_s=1.0, now=lambda: float(next(now))
    )
    case = make_case(make_recipe(epochs=12.0))
    saved: list[int] = []
    original = checkpoints.save

    def save(training: Any, **options: Any) -> None:
        saved.append(training.progress.steps)
        original(training, **options)

    checkpoints.save = save  # type: ignore[method-assign]
    assert run_on(case, checkpoints=checkpoints) is not None
    gaps = [b - a for a, b in pairwise(saved)]
    assert len(saved) >= 3 and gaps == sorted(gaps) and gaps[-1] > gaps[0]


def test_content_without_a_run_cannot_be_gone_on_from() -> None:
    for content in (b"", b"x" * 100, b"PK\x03\x04" + bytes(100)):
        with pytest.raises(BadCheckpoint):
            checkpoint.load(content)


def test_header_that_names_another_step_than_the_content_is_refused(place: Path) -> None:
    break_off(make_spec(place))
    rewrite(place, step=4)
    assert "its header is of another step" in joined(to_record(make_spec(place)).runs[0].note)


def test_header_can_be_read_without_torch() -> None:
    code = (
        "import sys, tune_speed.training.checkpoint.store\n"
        "print({'torch', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert issubclass(Header, checkpoint_file.Config)


# --- A process that is killed

KILLED = """
import sys, time
from tune_speed.training.objective import run_trial, finish
from tune_speed.training.trial import TrialSpec
spec = TrialSpec.model_validate_json(open(sys.argv[1]).read())
record = finish(run_trial(spec), on_report=lambda record: time.sleep(0.4))
open(sys.argv[2], "w").write(record.model_dump_json())
"""


def start(spec: TrialSpec, folder: Path) -> subprocess.Popen[bytes]:
    (folder / "spec.json").write_text(spec.model_dump_json())
    arguments = [str(folder / "spec.json"), str(folder / "record.json")]
    return subprocess.Popen([sys.executable, "-c", KILLED, *arguments], env=dict(os.environ))


@pytest.mark.slow
def test_trial_whose_process_was_killed_goes_on_in_another(place: Path, tmp_path: Path) -> None:
    spec = make_spec(place, batch_size=16, epochs=5.0, optimizer={"adam": {"lr": 0.01}})
    fields = json.loads(spec.model_dump_json())
    fields["recipe"]["model"] = {"plain_cnn": {"width": 4}}
    spec = TrialSpec.model_validate_json(json.dumps(fields))
    whole = to_record(spec.model_copy(update={"checkpoint": None}))
    assert whole.status == Status.MISSED
    killed = start(spec, tmp_path)
    try:
        deadline = time.monotonic() + 120
        while (saved_step(str(place)) or 0) < 8:
            assert time.monotonic() < deadline and killed.poll() is None
            time.sleep(0.05)
    finally:
        killed.kill()
        killed.wait()
    assert not (tmp_path / "record.json").exists()
    record = to_record(spec)
    assert joined(record.runs[0].note).startswith("resumed at step ")
    assert joined(record.runs[0].note).endswith(" of 20")
    assert curve_of(record) == curve_of(whole)
    assert not place.exists()


RATES = {"yellowfin": 1.0, "muon": 0.02, "sgd": 0.1}
AVERAGED = {"speedups": {"averaging": {"ema": {"every": 3, "half_life": 0.3}}}}
CASES: dict[str, dict[str, Any]] = {
    **{
        f"optimizer {name}": {"optimizer": {name: {"lr": RATES.get(name, 0.01)}}}
        for name in OPTIMIZERS
    },
    **{
        f"optimizer {name} of timm": {"optimizer": {"timm": {"name": name, "lr": 0.01}}}
        for name in ("adafactorbv", "adopt", "muon", "lars", "madgrad")
    },
    "frozen over the break, and rates of layers": {
        "freeze": {"until": "head", "epochs": 1.5},
        "layer_decay": 0.7,
        "optimizer": {"adam": {"lr": 0.01}},
        **AVERAGED,
    },
    "activations computed again": {"activation_checkpointing": True},
    "optimizer swats, switched before the break": {
        "optimizer": {"swats": {"lr": 0.01, "switch_at_step": 2}}
    },
    "optimizer swats, switched after the break": {
        "optimizer": {"swats": {"lr": 0.01, "switch_at_step": 7}}
    },
    **{f"schedule {name}": {"lr_schedule": name} for name in SCHEDULES},
    "schedule reduce_on_plateau that drops": {
        "lr_schedule": {"reduce_on_plateau": {"patience": 0, "threshold": 0.5}}
    },
    **{f"technique {name}": changes(name) for name in TECHNIQUES},
    "ema, its step not that of the break": AVERAGED,
    **{f"setting {name}": fields for name, fields in SETTINGS.items()},
    "fp16 whose loss scale grows": {"precision": "fp16", "loss_scale_growth_steps": 2},
    "fp16 whose loss overflows": {"precision": "fp16", "init_loss_scale": 1e9},
    "ragged groups": {"batch_size": 3, "accumulation_steps": 3},
    "one step an epoch": {"batch_size": 8, "accumulation_steps": 3, "epochs": 6.0},
    "adam in half": {"precision": "half", "optimizer": {"adam": {"lr": 0.01, "eps": 1e-3}}},
    "contiguous": {"channels_last": False},
    "augmentation": {"augmentation": {"pad": 1, "flip": "alternating", "cutout": 2}},
    "repeated images": {
        "order": {"repeat_factor": FIELDS["repeat_factor"]},
        "augmentation": {"flip": "alternating"},
    },
    "curriculum and ema": {**changes("curriculum"), **AVERAGED},
    "selection and stochastic depth": {
        "speedups": {
            "selection": {"selective_backprop": {"start": 0.1, "keep": 0.5}},
            "depth": {"stochastic_depth": {}},
        }
    },
    "sizes and batches that grow": {
        "speedups": {
            "resolution": {"progressive_resizing": {"multiple": 2, "delay_frac": 0.2}},
            "batch_growth": {"batch_stages": {}},
        }
    },
    "loader dataloader": {"loader": {"dataloader": {}}},
    "loader dataloader, 2 workers": {"loader": {"dataloader": {"workers": 2}}},
    "loader dataloader, 1 worker that does not stay": {
        "loader": {"dataloader": {"workers": 1, "persistent_workers": False}}
    },
}
"""Every entry of every table of the recipe, and settings that meet one another."""


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    known_models(monkeypatch, tiny=Tiny, everything=Everything)


@pytest.mark.parametrize("name", CASES)
def test_run_in_three_pieces_is_the_whole_run(name: str, tmp_path: Path) -> None:
    place = tmp_path / "t0000.ckpt"
    recipe = make_recipe(model=Everything(), **{"epochs": 3.0, **CASES[name]})
    case, warm = make_case(recipe), set[str]()
    whole = run_on(case, warm=warm)
    assert whole is not None
    assert run_on(case, checkpoints=open_checkpoints(place), close_after=1, warm=warm) is None
    disturb()
    second = open_checkpoints(place)
    assert second.progress is not None and 0 < second.progress.steps < whole.result.steps
    assert run_on(case, checkpoints=second, interrupt=interrupt_at(2), warm=warm) is None
    disturb()
    third = open_checkpoints(place)
    assert third.progress is not None
    assert third.progress.steps == second_step(second.notes) + 2
    pieced = run_on(case, checkpoints=third, warm=warm)
    assert pieced is not None
    assert_same_run(whole, pieced)


def second_step(notes: list[Note]) -> int:
    (note,) = notes
    return int(note.figures["step"])


def test_batch_norm_and_dropout_go_on_where_they_were(tmp_path: Path) -> None:
    case = make_case(make_recipe(model=Tiny(norm="batch", dropout=0.4), epochs=4.0))
    whole = run_on(case)
    run_on(case, checkpoints=open_checkpoints(tmp_path / "c"), close_after=2)
    disturb()
    pieced = run_on(case, checkpoints=open_checkpoints(tmp_path / "c"))
    assert whole is not None and pieced is not None
    assert_same_run(whole, pieced)
    assert int(pieced.weights["norm.num_batches_tracked"]) == 12


def test_run_may_break_off_after_any_step(tmp_path: Path) -> None:
    recipe = make_recipe(model=Tiny(dropout=0.2), epochs=4.0, batch_size=4, accumulation_steps=2)
    case = make_case(recipe)
    whole = run_on(case)
    assert whole is not None and whole.result.steps == 12
    for step in range(1, 12):
        place = tmp_path / str(step)
        run_on(case, checkpoints=open_checkpoints(place), interrupt=interrupt_at(step))
        disturb()
        pieced = run_on(case, checkpoints=open_checkpoints(place))
        assert pieced is not None
        assert_same_run(whole, pieced)


def test_every_speedup_that_keeps_state_gives_it_back() -> None:
    from tune_speed.components.speedups import SPEEDUPS

    for name, kind in SPEEDUPS.items():
        has_state = kind.state is not SpeedupConfig.state
        assert has_state == (kind.restore is not SpeedupConfig.restore), name
