"""From the specification of a trial to its record; nothing that a trial does wrong gets out."""

import traceback
from collections.abc import Callable, Generator
from functools import cache

import torch

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
from tune_speed.trial import TrialSpec, failure, make_record, utc_now
from tune_speed.workload import Workload

Trial = Generator[TrialRecord, str | None, TrialRecord]
"""Yields the record so far (`capped`) after each evaluation but the last; takes a reason to stop
there, or None to go on; returns the record."""


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
    started_at = utc_now()
    torch.set_num_threads(spec.allotment.cpu_threads)
    try:
        recipe, run = yield from _run_within_memory(spec, interrupt, started_at)
    except (Interrupted, *refuse):
        raise
    except Exception as error:
        recipe, run = spec.recipe, failure(spec, error)
    return make_record(spec, recipe, run, started_at=started_at)


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
