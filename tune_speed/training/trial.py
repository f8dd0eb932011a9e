"""What a trial is before it runs and after it ended; free of torch, so that the driver is quick."""

import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from tune_speed.components.plugins import registry
from tune_speed.core.config import Config, left_out
from tune_speed.core.errors import traceback_of
from tune_speed.core.prices import Prices
from tune_speed.core.records import Evaluation, RunResult, Status, StepTime, Timing, TrialRecord
from tune_speed.core.targets import Task
from tune_speed.core.version import __version__, installed_version
from tune_speed.core.words import ProposalReason, StopReason
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.git import run_git
from tune_speed.runtime.pooled_times import power_of_run
from tune_speed.runtime.sharing import Sharing
from tune_speed.runtime.turnstile import LONGEST_PAUSE_S, PATIENCE_S
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Workload


class Allotment(Config):
    """The share of a machine that a trial may use."""

    device: str = "auto"
    """`cpu`, `cuda` or `auto`."""
    cpu_threads: Annotated[int, Field(gt=0)] = 1
    """Threads of one operation on the CPU."""
    cpu_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the node's CPU cores."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Main memory that it may allocate [GiB]; None: its share of the cores, and not enforced."""
    gpu_fraction: Annotated[float, Field(ge=0)] = 0.0
    """Share of one GPU; 0 for none, 1 or more for whole ones."""
    max_cotenants: Annotated[int, Field(ge=0)] = 0
    """Other trials that may run on the same device at the same time."""
    longest_pause_s: Annotated[float, Field(ge=PATIENCE_S)] = LONGEST_PAUSE_S
    """Longest pause for another trial whose steps are long to time them [s]."""
    price_per_hour: Prices = left_out({})
    """Of one whole device, by its type."""


class KeepWeights(Config):
    """Where a run leaves its network, if that may be the best."""

    file: str
    since: float | None = None
    """The run whose last metric is the best is kept, of those that ended since then [s since 1970];
    None: one that met the target as soon as `at_most_s`."""
    at_most_s: float | None = None
    """Time to target of the best so far [s]; None: none has met the target."""


class CheckpointPlan(Config):
    """Where and how often a running trial is saved."""

    place: str
    """A file, or a URL that fsspec knows."""
    every_s: Annotated[float, Field(ge=0)] = 60.0
    """Saved at the first evaluation after this long [s]."""


class SpecBase(Config):
    """What is needed to run one trial, in any process, whatever trains in it."""

    study: str
    trial_id: str
    params: dict[str, Any]
    """What the search chose."""
    proposal_reason: ProposalReason = ProposalReason()
    """Why the search chose it."""
    recipe: Config
    workload: Task
    workload_hash: str
    space_hash: str
    seed: int
    evaluated_on: Literal["validation", "test"] = "validation"
    """Part on which the target must hold. A search never sees the test part."""
    allotment: Allotment = Allotment()
    step_times: tuple[StepTime, ...] = ()
    """Isolated step times that are known and need not be measured again."""
    due_step_times: tuple[str, ...] = ()
    """Keys of those that are measured once more all the same."""
    keep: KeepWeights | None = None
    """None: weights are not saved."""
    checkpoint: CheckpointPlan | None = None
    """None: a trial that breaks off starts again from its first step."""

    @property
    def devices(self) -> int:
        return 1

    @staticmethod
    def recipe_of(tree: Mapping[str, Any]) -> Config:
        """Returns the recipe of one point of the search space."""
        raise NotImplementedError


class TrialSpec(SpecBase):
    """A trial of a recipe."""

    recipe: Recipe
    workload: Workload

    @property
    def devices(self) -> int:
        return self.recipe.devices

    @staticmethod
    def recipe_of(tree: Mapping[str, Any]) -> Recipe:
        return Recipe.model_validate(tree).located()


SAME = (
    *("study", "trial_id", "params", "proposal_reason"),
    *("workload_hash", "space_hash", "evaluated_on"),
)
"""Fields of a record that are those of its trial's spec."""


def failure(spec: SpecBase, error: BaseException) -> RunResult:
    return RunResult(
        status=Status.FAILED,
        seed=spec.seed,
        stop_reason=StopReason.of_error(error),
        traceback=traceback_of(error),
    )


def run_result(
    status: Status,
    *,
    evaluations: Sequence[Evaluation],
    clock: Clock,
    sharing: Sharing,
    train_s: float,
    held_up_frac: Callable[[], float],
    **more: Any,
) -> RunResult:
    """Returns how a run ended, or stands, with the times that follow from its clock.

    `train_s` is the training clock [s], which need not be that of `clock`; `held_up_frac` returns
    for which share of its time others held it up. `more` are further fields of `RunResult`, `steps`
    and `samples` among them, which replace those that follow from the clock.
    """
    steps, samples = more["steps"], more["samples"]
    timing, note = sharing.timing_of_clock(held_up_frac)
    is_alone = more.get("timing", timing) is Timing.EXCLUSIVE
    step_times, shape_steps = more.get("step_times", ()), more.get("shape_steps", ())
    by_steps = power_of_run(step_times, shape_steps) if step_times else None
    fields = {
        "power_w": clock.power_w if is_alone else by_steps,
        "idle_power_w": sharing.idle_power_w,
        "images_per_s": samples / train_s if samples and train_s else None,
        "step_time_ms": 1000 * train_s / steps if steps else None,
        "timing": timing,
        "note": note,
    }
    return RunResult(
        status=status,
        evaluations=tuple(evaluations),
        clocks=clock.clocks().model_copy(update={"train_s": train_s}),
        shared_train_s=clock.elapsed("train_s"),
        cotenants=sharing.cotenants,
        **{**fields, **more},
    )


def make_record(
    spec: SpecBase,
    recipe: Config,
    run: RunResult,
    *,
    started_at: str,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> TrialRecord:
    """Returns the record of a trial whose one run is `run`; `settings` are those of its device."""
    return TrialRecord(
        **{name: getattr(spec, name) for name in SAME},
        recipe=recipe.model_dump(mode="json"),
        workload=spec.workload.model_dump(mode="json"),
        workload_name=spec.workload.label,
        status=run.status,
        runs=(run,),
        device=run.device,
        cpu_threads=spec.allotment.cpu_threads,
        max_cotenants=spec.allotment.max_cotenants,
        environment={**environment(), **settings},
        plugins=registry.hashes(),
        prices=spec.allotment.price_per_hour,
        started_at=started_at,
        finished_at=utc_now(),
    )


def with_failure(record: TrialRecord, failed: RunResult) -> TrialRecord:
    run = with_fields(record.runs[-1], failed)
    changes = {"runs": (run,), "status": run.status, "finished_at": utc_now()}
    return record.model_copy(update=changes)


def with_fields(run: RunResult, given: RunResult) -> RunResult:
    """Returns a run with the fields that were given to another."""
    return run.model_copy(update={name: getattr(given, name) for name in given.model_fields_set})


@cache
def environment() -> Mapping[str, str]:
    """Returns what a later reader needs to judge a figure: versions, host, commit."""
    packages = ("torch", "torchvision", "timm", "numpy", "ray", "optuna", "mlflow")
    versions = {name: installed_version(name) for name in packages}
    found = run_git(Path(__file__).parent, "describe", "--always", "--dirty", "--abbrev=40")
    return {
        "tune_speed": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        # Of this package's checkout, with `-dirty` if it has changes.
        "commit": (found or "").strip() or "none",
        **{name: version for name, version in versions.items() if version},
    }


def utc_now() -> str:
    """Returns the time as records carry it: UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
