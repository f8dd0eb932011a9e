"""From the parameters of a trial to its record; nothing that a trial does wrong gets out of here."""

import platform
import subprocess
import traceback
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from tune_speed import __version__
from tune_speed.config import Config
from tune_speed.data.cache import prepare
from tune_speed.data.split import Splits, make_splits
from tune_speed.device import (
    describe_device,
    is_out_of_memory,
    memory_limit_gib,
    peak_memory_gib,
    resolve_device,
)
from tune_speed.micro_batch import fastest, halved, release_memory
from tune_speed.recipe import Recipe
from tune_speed.records import RunResult, Status, TrialRecord
from tune_speed.train import Interrupted, Run, train
from tune_speed.workload import Workload

Trial = Generator[TrialRecord, str | None, TrialRecord]
"""Yields the record so far (`capped`) after each evaluation but the last; takes a reason to stop
there, or None to go on; returns the record."""


class Allotment(Config):
    """The share of a machine that a trial may use."""

    device: str = "auto"
    """`cpu`, `cuda` or `auto`."""
    cpu_threads: Annotated[int, Field(gt=0)] = 1
    """Threads of one operation on the CPU."""
    cpu_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the node's CPU cores."""
    gpu_fraction: Annotated[float, Field(ge=0)] = 0.0
    """Share of one GPU; 0 for none, 1 or more for whole ones."""
    cotenants: Annotated[int, Field(ge=0)] = 0
    """Other trials that may run on the same device at the same time."""


class TrialSpec(Config):
    """All that is needed to run one trial, in any process."""

    study: str
    trial_id: str
    params: dict[str, Any]
    """What the search chose."""
    recipe: Recipe
    workload: Workload
    workload_hash: str
    space_hash: str
    seed: int
    allotment: Allotment = Allotment()


@cache
def load_splits(workload: Workload) -> tuple[Splits, str]:
    """Returns the workload's splits and the hash of its data, once per process. Raises: DataError."""
    data = prepare(workload.dataset)
    return make_splits(data, workload.split), data.data_hash


def run_trial(
    spec: TrialSpec,
    *,
    interrupt: Callable[[], bool] = lambda: False,
    refuse: tuple[type[Exception], ...] = (),
) -> Trial:
    """Runs one trial; whatever goes wrong in it becomes its status, reason and traceback.

    Out of memory: the micro-batch is halved and the accumulation doubled, so that the effective
    batch size and with it the learning rate stay; with a micro-batch of one, the outcome is `oom`.

    Raises: Interrupted, which is no outcome of the trial, and errors of the kinds in `refuse`.
    """
    started_at = _utc_now()
    torch.set_num_threads(spec.allotment.cpu_threads)
    try:
        recipe, run = yield from _run_within_memory(spec, interrupt, started_at)
    except (Interrupted, *refuse):
        raise
    except Exception as error:
        recipe, run = spec.recipe, failure(spec, error)
    return make_record(spec, recipe, run, started_at=started_at)


def failure(spec: TrialSpec, error: BaseException) -> RunResult:
    """Returns the result of a run that ended with `error`, traceback included."""
    reason = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
    return RunResult(
        status=Status.FAILED,
        seed=spec.seed,
        stop_reason=reason.splitlines()[0],
        traceback="".join(traceback.format_exception(error)),
    )


def make_record(spec: TrialSpec, recipe: Recipe, run: RunResult, *, started_at: str) -> TrialRecord:
    """Returns the record of a trial whose one run ended, or stands, as `run` says."""
    return TrialRecord(
        study=spec.study,
        trial_id=spec.trial_id,
        params=spec.params,
        recipe=recipe.model_dump(mode="json"),
        workload=spec.workload.model_dump(mode="json"),
        workload_name=spec.workload.name,
        workload_hash=spec.workload_hash,
        space_hash=spec.space_hash,
        status=run.status,
        runs=(run,),
        device=run.device,
        cpu_threads=spec.allotment.cpu_threads,
        cotenants=spec.allotment.cotenants,
        environment=dict(environment()),
        started_at=started_at,
        finished_at=_utc_now(),
    )


def _run_within_memory(
    spec: TrialSpec, interrupt: Callable[[], bool], started_at: str
) -> Generator[TrialRecord, str | None, tuple[Recipe, RunResult]]:
    device = resolve_device(spec.allotment.device)
    limit_gib = memory_limit_gib(
        device,
        gpu_fraction=spec.allotment.gpu_fraction,
        cpu_fraction=spec.allotment.cpu_fraction,
    )
    splits, _ = load_splits(spec.workload)
    recipe: Recipe | None = fastest(spec.recipe, splits, device=device)
    while recipe is not None:
        try:
            run = train(
                spec.workload, recipe, splits, seed=spec.seed, device=device, interrupt=interrupt
            )
            result = yield from _as_records(run, spec, recipe, limit_gib, started_at)
            return recipe, result
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            smallest, message = recipe, traceback.format_exc()
        # Outside the handler: its traceback would keep the failed run's tensors alive.
        release_memory(device)
        recipe = halved(smallest)
    return smallest, RunResult(
        status=Status.OOM,
        seed=spec.seed,
        stop_reason="out of memory with a micro-batch of 1",
        peak_memory_gib=peak_memory_gib(device),
        memory_limit_gib=limit_gib,
        batch_size=smallest.batch_size,
        device=describe_device(device),
        traceback=message,
    )


def _as_records(
    run: Run, spec: TrialSpec, recipe: Recipe, limit_gib: float, started_at: str
) -> Generator[TrialRecord, str | None, RunResult]:
    """Passes on what `run` yields as records, and reasons to stop back to it."""
    limit = {"memory_limit_gib": limit_gib}
    reason: str | None = None
    try:
        while True:
            so_far = run.send(reason).model_copy(update=limit)
            reason = yield make_record(spec, recipe, so_far, started_at=started_at)
    except StopIteration as end:
        result: RunResult = end.value
        return result.model_copy(update=limit)
    finally:
        run.close()


def finish(trial: Trial, *, on_report: Callable[[TrialRecord], None]) -> TrialRecord:
    """Runs a trial to its end and returns its record; `on_report` sees the record so far."""
    try:
        while True:
            on_report(next(trial))
    except StopIteration as end:
        record: TrialRecord = end.value
        return record


@cache
def environment() -> Mapping[str, str]:
    """Returns what a later reader needs to judge a figure: versions, host, commit."""
    packages = ("torch", "torchvision", "timm", "numpy", "ray", "optuna", "mlflow")
    versions = {name: _version(name) for name in packages}
    return {
        "tune_speed": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "cuda": str(torch.version.cuda),
        "commit": _commit(),
        **{name: version for name, version in versions.items() if version},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    """Returns the commit of this package's checkout, with `-dirty` if it has changes, or `none`."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    return done.stdout.strip() or "none"


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
