"""Runs that break off and go on, for tests: the same run whole, and in pieces."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from helpers.training.tiny import CPU, make_splits, make_workload
from torch import Tensor, nn

from tune_speed.components.models import MODELS
from tune_speed.core.records import RunResult, TrialRecord
from tune_speed.data.split import SplitConfig, Splits
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.sharing import Sharing
from tune_speed.training import loop
from tune_speed.training.build import Job
from tune_speed.training.checkpoint.checkpoints import Checkpoints
from tune_speed.training.checkpoint.store import CheckpointStore
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import finish, run_trial
from tune_speed.training.ranks import ALONE
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, CheckpointPlan, TrialSpec
from tune_speed.training.workload import Workload

IDENTITY = {"trial": "t0000"}


class Ended(NamedTuple):
    result: RunResult
    weights: dict[str, Tensor]
    """Of the network that was trained, batch statistics included."""
    evaluated: dict[str, Tensor]
    """Of the network that was evaluated: the same, or an average."""
    random: Tensor
    """State of torch's generator at the end."""


class Case(NamedTuple):
    """A run to be made whole and in pieces."""

    recipe: Recipe
    splits: Splits
    workload: Workload
    seed: int = 3


def make_case(recipe: Recipe, **workload: Any) -> Case:
    """Returns a run on 20 images; with a batch of 8 or 4 x 2, epochs end with a ragged step."""
    return Case(recipe, make_splits(), make_workload(**workload))


def open_checkpoints(place: Path, *, every_s: float = 0.0, **changes: Any) -> Checkpoints:
    """Returns a trial's checkpoints as a fresh process has them."""
    plan = CheckpointPlan(place=str(place), every_s=every_s)
    fields = {"identity": IDENTITY, "started_at": "2026-01-01", "ranks": ALONE, **changes}
    checkpoints = Checkpoints(plan, CheckpointStore(plan.place), **fields)
    checkpoints.look(most_batch_size=None)
    return checkpoints


def run_on(
    case: Case,
    *,
    checkpoints: Checkpoints | None = None,
    close_after: int | None = None,
    interrupt: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
    warm: set[str] | None = None,
) -> Ended | None:
    """Runs to the end; None where it is closed after so many evaluations, or interrupted.

    With `warm`, a set for the runs of a process, only the first of them warms up.
    """
    built: list[nn.Module] = []
    evaluated: dict[str, Tensor] = {}

    def note(result: RunResult, model: nn.Module) -> None:
        evaluated.update(copy_of(model))

    original = loop.build_model
    sharing = Sharing.alone()
    sharing.warm = warm
    loop.build_model = lambda *args, **kw: built.append(original(*args, **kw)) or built[-1]
    try:
        run = loop.train(
            Job(
                case.workload,
                checkpoints.recipe if checkpoints and checkpoints.recipe else case.recipe,
                case.splits,
                seed=case.seed,
                device=CPU,
            ),
            clock=clock,
            sharing=sharing,
            interrupt=interrupt,
            checkpoints=checkpoints,
            on_end=note,
        )
        num_yielded = 0
        next(run)
        while True:
            num_yielded += 1
            if num_yielded == close_after:
                run.close()
                return None
            run.send(None)
    except StopIteration as end:
        return Ended(end.value, copy_of(built[0]), evaluated, torch.get_rng_state())
    except Interrupted:
        return None
    finally:
        loop.build_model = original


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def disturb() -> None:
    """Uses random numbers up, as whatever runs in between does."""
    torch.manual_seed(12345)
    torch.rand(7)


def interrupt_at(step: int) -> Callable[[], bool]:
    """Returns what interrupts before the step that is the `step`-th to be asked about, from 0."""
    asked = iter(range(1_000_000))
    return lambda: next(asked) == step


def known_models(monkeypatch: Any, **models: Any) -> None:
    for name, kind in models.items():
        monkeypatch.setitem(MODELS, name, kind)


def assert_same_run(whole: Ended, pieced: Ended) -> None:
    """Everything that a run leaves behind is the same to the bit, but for times."""
    ours, theirs = whole.result, pieced.result
    assert untimed(ours) == untimed(theirs)
    for which in ("weights", "evaluated"):
        first, second = getattr(whole, which), getattr(pieced, which)
        assert first.keys() == second.keys()
        different = [name for name in first if not torch.equal(first[name], second[name])]
        assert not different, (which, different)
    assert torch.equal(whole.random, pieced.random)
    times = [e.train_s for e in theirs.evaluations]
    assert times == sorted(times)


def untimed(result: RunResult) -> dict[str, Any]:
    """Returns what of a result is no time and no memory."""
    kept = result.model_dump(
        include={"status", "seed", "stop_reason", "steps", "samples", "batch_size", "device"}
    )
    evaluations = [e.model_dump(exclude={"train_s"}) for e in result.evaluations]
    return {**kept, "evaluations": evaluations}


def make_spec(
    place: Path | None,
    *,
    model: dict[str, Any] | None = None,
    trial: dict[str, Any] | None = None,
    **recipe: Any,
) -> TrialSpec:
    """Returns a trial on 60 small digits, saved after every evaluation."""
    fields = {"optimizer": {"sgd": {"lr": 0.1}}, "epochs": 4.0, "batch_size": 16, **recipe}
    split = SplitConfig(train_samples=60, validation_samples=30)
    spec = TrialSpec(
        study="study",
        trial_id="t0000",
        params={},
        recipe=Recipe.model_validate({"model": {"tiny": model or {}}, **fields}),
        workload=make_workload(split=split),
        workload_hash="w" * 16,
        space_hash="s" * 16,
        seed=0,
        allotment=Allotment(device="cpu", cpu_fraction=0.5),
        checkpoint=None if place is None else CheckpointPlan(place=str(place), every_s=0.0),
    )
    return spec.model_copy(update=trial or {})


def break_off(spec: TrialSpec, *, after: int = 2) -> TrialRecord:
    """Runs a trial up to so many reports and leaves it there; returns the last."""
    trial = run_trial(spec)
    record = next(trial)
    for _ in range(after - 1):
        record = next(trial)
    trial.close()
    disturb()
    return record


def to_record(spec: TrialSpec, **options: Any) -> TrialRecord:
    return finish(run_trial(spec, **options), on_report=lambda record: None)


def curve_of(record: TrialRecord) -> list[dict[str, Any]]:
    """Returns what of a record's evaluations is no time."""
    return [e.model_dump(exclude={"train_s"}) for e in record.runs[0].evaluations]
