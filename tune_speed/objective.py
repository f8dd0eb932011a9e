"""From the specification of a trial to its record; nothing that a trial does wrong gets out."""

import traceback
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import cache, partial

import torch

from tune_speed import batch_tuner, serving
from tune_speed.clock import Clock
from tune_speed.data.cache import prepare
from tune_speed.data.split import Splits, make_splits
from tune_speed.device import (
    describe_devices,
    device_key,
    is_out_of_memory,
    memory_limit_gib,
    peak_memory_gib,
    release_memory,
    resolve_device,
    set_up_process,
    synchronizer,
)
from tune_speed.errors import ConfigError
from tune_speed.kept_weights import save_weights
from tune_speed.micro_batch import fastest, halved
from tune_speed.ranks import ALONE, Ranks
from tune_speed.recipe import Recipe
from tune_speed.records import RunResult, Status, TrialRecord
from tune_speed.sharing import Sharing
from tune_speed.step import accumulation_of
from tune_speed.train import Interrupted, LoneImage, Run, train
from tune_speed.trial import TrialSpec, failure, make_record, utc_now
from tune_speed.workload import Workload

Trial = Generator[TrialRecord, str | None, TrialRecord]
"""Yields the record so far (`capped`) after each evaluation but the last; takes a reason to stop
there, or None to go on; returns the record."""

Attempt = Generator[TrialRecord, str | None, tuple[Recipe, RunResult]]
"""As `Trial`, but returns the recipe that ran in the end, and its result."""


@cache
def load_splits(workload: Workload) -> Splits:
    """Returns the workload's splits, read once per process. Raises: DataError."""
    return make_splits(prepare(workload.dataset), workload.split)


def run_trial(
    spec: TrialSpec,
    *,
    interrupt: Callable[[], bool] = lambda: False,
    refuse: tuple[type[Exception], ...] = (),
    ranks: Ranks = ALONE,
) -> Trial:
    """Runs one trial; whatever goes wrong in it becomes its status, reason and traceback.

    Out of memory: the micro-batch is halved and the accumulation doubled, so that the effective
    batch size and with it the learning rate stay; with a micro-batch of one, the outcome is `oom`.
    It is at once where this process is one of several `ranks`, which have to start anew together.

    Raises: Interrupted, which is no outcome of the trial, and errors of the kinds in `refuse`.
    """
    started_at = utc_now()
    passed_on: tuple[type[Exception], ...] = (Interrupted, *refuse)
    try:
        recipe, run = yield from _run(spec, interrupt, passed_on, started_at, ranks)
    except passed_on:
        raise
    except Exception as error:
        recipe, run = spec.recipe, _failed(spec, error)
    return make_record(spec, recipe, run, started_at=started_at)


def _run(
    spec: TrialSpec,
    interrupt: Callable[[], bool],
    passed_on: tuple[type[Exception], ...],
    started_at: str,
    ranks: Ranks,
) -> Attempt:
    """Runs the trial, with smaller and smaller micro-batches where memory runs out."""
    device = resolve_device(spec.allotment.device)
    set_up_process(device, cpu_threads=spec.allotment.cpu_threads)
    place = Sharing.open(
        device_key(device),
        study=spec.study,
        trial=spec.trial_id,
        may_have_company=spec.allotment.max_cotenants > 0,
        known=spec.step_times,
    )
    with place if ranks.is_first else nullcontext(Sharing.alone()) as sharing:
        return (
            yield from _run_there(spec, device, sharing, interrupt, passed_on, started_at, ranks)
        )


def _run_there(
    spec: TrialSpec,
    device: torch.device,
    sharing: Sharing,
    interrupt: Callable[[], bool],
    passed_on: tuple[type[Exception], ...],
    started_at: str,
    ranks: Ranks,
) -> Attempt:
    limit_gib = _memory_limit_gib(spec, device)
    clock = Clock(synchronize=synchronizer(device), turnstile=sharing.turnstile)
    with clock.span("setup_s"):
        splits = load_splits(spec.workload)
    with clock.span("compile_s"):
        chosen = _resolved(spec.recipe, splits, device=device) if ranks.is_first else spec.recipe
        recipe = first = ranks.tell(chosen)
    while True:
        try:
            run = train(
                spec.workload,
                recipe,
                splits,
                seed=spec.seed,
                evaluated_on=spec.evaluated_on,
                device=device,
                clock=clock,
                sharing=sharing,
                interrupt=interrupt,
                ranks=ranks,
                on_end=partial(save_weights, spec.keep if ranks.is_first else None),
            )
            result = yield from _as_records(run, spec, recipe, limit_gib, passed_on, started_at)
            return recipe, _with_note(result, first, recipe)
        except Exception as error:
            # Once memory ran out, a micro-batch that is too small is no way out either.
            is_too_small = isinstance(error, LoneImage) and recipe is not first
            if not (is_out_of_memory(error) or is_too_small):
                raise
            message = traceback.format_exc()
        # Outside the handler: its traceback would keep the failed run's tensors alive.
        release_memory(device)
        smaller = halved(recipe) if ranks.size == 1 else None
        if smaller is None:
            return recipe, _out_of_memory(spec, recipe, device, message)
        recipe = smaller
        clock = Clock(synchronize=synchronizer(device), turnstile=sharing.turnstile)


def _resolved(recipe: Recipe, splits: Splits, *, device: torch.device) -> Recipe:
    """Returns `recipe` with numbers for all that is `auto`: batch, accumulation, then workers."""
    recipe = batch_tuner.resolved(recipe, splits, device=device)
    recipe = fastest(recipe, splits, device=device)
    return serving.resolved(recipe, splits, device=device)


def _as_records(
    run: Run,
    spec: TrialSpec,
    recipe: Recipe,
    limit_gib: float,
    passed_on: tuple[type[Exception], ...],
    started_at: str,
) -> Generator[TrialRecord, str | None, RunResult]:
    """Passes on what `run` yields as records, and reasons to stop back to it.

    An error after the first evaluation leaves a failed result that keeps the evaluations.
    """
    limit = {"memory_limit_gib": limit_gib}
    so_far: RunResult | None = None
    reason: str | None = None
    try:
        while True:
            so_far = run.send(reason).model_copy(update=limit)
            reason = yield make_record(spec, recipe, so_far, started_at=started_at)
    except StopIteration as end:
        result: RunResult = end.value
        return result.model_copy(update=limit)
    except Exception as error:
        if so_far is None or is_out_of_memory(error) or isinstance(error, passed_on):
            raise
        return so_far.model_copy(update=failure(spec, error).model_dump(exclude_unset=True))
    finally:
        run.close()


def _with_note(result: RunResult, first: Recipe, ran: Recipe) -> RunResult:
    if ran is first:
        return result
    note = f"micro-batch {first.batch_size} ran out of memory, {ran.batch_size} did not"
    return result.model_copy(update={"stop_reason": f"{result.stop_reason} ({note})"})


def _out_of_memory(
    spec: TrialSpec, recipe: Recipe, device: torch.device, message: str
) -> RunResult:
    return RunResult(
        status=Status.OOM,
        seed=spec.seed,
        stop_reason=f"out of memory, down to a micro-batch of {recipe.batch_size}",
        peak_memory_gib=peak_memory_gib(device),
        memory_limit_gib=_memory_limit_gib(spec, device),
        batch_size=recipe.batch_size,
        accumulation_steps=accumulation_of(recipe),
        device=describe_devices(device, recipe.devices),
        traceback=message,
    )


def _failed(spec: TrialSpec, error: Exception) -> RunResult:
    """Returns the result of a run that never began."""
    result = failure(spec, error)
    try:
        device = describe_devices(resolve_device(spec.allotment.device), spec.recipe.devices)
    except ConfigError:  # The device itself may be what is wrong.
        return result
    return result.model_copy(update={"device": device})


def _memory_limit_gib(spec: TrialSpec, device: torch.device) -> float:
    if device.type == "cpu" and spec.allotment.memory_gib is not None:
        return spec.allotment.memory_gib
    return memory_limit_gib(
        device,
        gpu_fraction=spec.allotment.gpu_fraction,
        cpu_fraction=spec.allotment.cpu_fraction,
    )


def finish(trial: Trial, *, on_report: Callable[[TrialRecord], None]) -> TrialRecord:
    """Runs a trial to its end and returns its record; `on_report` sees the record so far."""
    try:
        while True:
            on_report(next(trial))
    except StopIteration as end:
        record: TrialRecord = end.value
        return record
