"""From the specification of a trial and a training function to the trial's record."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tune_speed.core.config import canonical_hash
from tune_speed.core.errors import DeviceFailed, reason_of, traceback_of
from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.core.words import Note, NoteKind, StopReason
from tune_speed.custom.checkpoints import SavedRuns
from tune_speed.custom.isolated_steps import IsolatedSteps, StepKind
from tune_speed.custom.run import Outcome, OwnRun, StopTraining
from tune_speed.custom.spec import OwnSpec
from tune_speed.runtime import device as devices
from tune_speed.runtime import heartbeat
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.device_settings import device_settings
from tune_speed.runtime.pooled_times import timing_of
from tune_speed.runtime.process import HeldUp, cpu_wait_s, run_delay
from tune_speed.runtime.reference_step import ReferenceStep
from tune_speed.runtime.sharing import KnownSteps, Sharing
from tune_speed.training.checkpoint.store import discard
from tune_speed.training.loop import Interrupted
from tune_speed.training.throughput import place_of
from tune_speed.training.trial import failure, make_record, run_result, utc_now
from tune_speed.training.warm_up import open_meters
from tune_speed.training.worker import ends_process, open_device

Train = Callable[[dict[str, Any], OwnRun], object]
"""`my_train(params, run)`; what it returns is not looked at."""


def run_own_trial(
    spec: OwnSpec,
    train: Train,
    *,
    interrupt: Callable[[], bool] = lambda: False,
    on_report: Callable[[TrialRecord], None] = lambda record: None,
    refuse: tuple[type[Exception], ...] = (),
) -> TrialRecord:
    """Calls the training function; whatever goes wrong in it becomes status, reason and traceback.

    `interrupt` says, at each step and evaluation, whether to end; `on_report` sees the record so
    far.

    Raises: Interrupted, which is no outcome of the trial, and errors of the kinds in `refuse`.
    """
    started_at = utc_now()
    passed_on: tuple[type[Exception], ...] = (Interrupted, *refuse)
    try:
        record = _run(spec, train, interrupt, on_report, started_at, refuse)
    except passed_on:
        raise
    except Exception as error:
        if ends_process(error, refuse):
            raise DeviceFailed(reason_of(error)) from error
        record = make_record(spec, spec.recipe, failure(spec, error), started_at=started_at)
    if spec.checkpoint is not None:
        discard(spec.checkpoint.place)
    return record


def _run(
    spec: OwnSpec,
    train: Train,
    interrupt: Callable[[], bool],
    on_report: Callable[[TrialRecord], None],
    started_at: str,
    refuse: tuple[type[Exception], ...],
) -> TrialRecord:
    heartbeat.beat()
    device = open_device(spec.allotment)
    devices.reset_peak_memory(device)
    with Sharing.open(
        devices.device_key(device),
        study=spec.study,
        trial=spec.trial_id,
        may_have_company=spec.allotment.max_cotenants > 0,
        steps=KnownSteps(times=spec.step_times),
        longest_pause_s=spec.allotment.longest_pause_s,
    ) as sharing:
        training = _Training(spec, device=device, sharing=sharing, started_at=started_at)
        result = training.call(train, interrupt=interrupt, on_report=on_report, refuse=refuse)
    devices.release_memory(device)
    settings = device_settings(device)
    return make_record(spec, spec.recipe, result, started_at=training.started_at, settings=settings)


class _Training:
    def __init__(
        self, spec: OwnSpec, *, device: torch.device, sharing: Sharing, started_at: str
    ) -> None:
        self._spec, self._device, self._sharing = spec, device, sharing
        open_meters(device, sharing)
        self._clock = Clock(
            synchronize=devices.synchronizer(device),
            turnstile=sharing.turnstile,
            energy_j=sharing.energy_j,
        )
        self._waited_before_s, self._held_up = cpu_wait_s(), HeldUp(device)
        self._saved: SavedRuns | None = None
        if spec.checkpoint is not None:
            self._saved = SavedRuns(
                spec, device=devices.describe_device(device), started_at=started_at
            )
        self._started_at = started_at

    @property
    def started_at(self) -> str:
        """When the trial began, in whichever process: UTC, ISO 8601."""
        return self._started_at if self._saved is None else self._saved.started_at

    def call(
        self,
        train: Train,
        *,
        interrupt: Callable[[], bool],
        on_report: Callable[[TrialRecord], None],
        refuse: tuple[type[Exception], ...],
    ) -> RunResult:
        """Returns how the function's run ended. Raises: Interrupted; what ends the process."""

        def report(run: OwnRun) -> None:
            so_far = self._result(run, Outcome(Status.CAPPED, StopReason()))
            on_report(
                make_record(self._spec, self._spec.recipe, so_far, started_at=self.started_at)
            )

        run = OwnRun(
            self._spec,
            device=self._device.type,
            clock=self._clock,
            place=self._sharing,
            on_report=report,
            interrupt=interrupt,
            saved=self._saved,
            steps=self._steps(),
        )
        details = self._traceback(train, run, refuse)
        if run.is_interrupted:
            raise Interrupted
        assert run.outcome is not None
        return self._result(run, run.outcome).model_copy(update={"traceback": details})

    def _steps(self) -> IsolatedSteps:
        # Nothing says that steps of another run are alike, so its times are none of this one's.
        kind = self._spec.workload.function_hash, self._spec.recipe.params, self._sharing.label
        place, synchronize = place_of(self._device), devices.synchronizer(self._device)
        reference, delayed_s = None, run_delay(self._device)
        if self._sharing.isolates:
            with self._clock.span("compile_s"):
                reference = ReferenceStep(
                    self._device, synchronize=synchronize, delayed_s=delayed_s
                )
        return IsolatedSteps(
            StepKind(canonical_hash({"steps": kind, "place": place}), place, self._device.type),
            clock=self._clock,
            sharing=self._sharing,
            reference=reference,
            delayed_s=delayed_s,
        )

    def _traceback(
        self, train: Train, run: OwnRun, refuse: tuple[type[Exception], ...]
    ) -> str | None:
        random.seed(self._spec.seed)
        np.random.seed(self._spec.seed)
        torch.manual_seed(self._spec.seed)
        try:
            # A copy, as the function may change it.
            train(copy.deepcopy(self._spec.recipe.params), run)
            run.returned()
        except StopTraining:
            pass
        # The function's, whatever it raised; Ctrl-C and the process's end are not.
        except Exception as error:
            if ends_process(error, refuse):
                raise
            status = Status.OOM if devices.is_out_of_memory(error) else Status.FAILED
            # What it raises after its outcome was settled is part of that.
            run.outcome = run.outcome or Outcome(status, StopReason.of_error(error))
            return traceback_of(error)
        finally:
            run.close()
        return None

    def _result(self, run: OwnRun, outcome: Outcome) -> RunResult:
        last, share = run.evaluations[-1] if run.evaluations else None, self._spec.allotment
        step_times = () if run.step_time is None else (run.step_time,)
        timing, notes = self._sharing.timing_of_clock(self._held_up.frac)
        if step_times:
            timing, notes = timing_of(step_times), ()
        passed_s = self._clock.elapsed("train_s")
        reported = (Note.of(NoteKind.REPORTED),) if run.reports_clock else ()
        saved = self._saved.notes if self._saved is not None else ()
        return run_result(
            outcome.status,
            evaluations=run.evaluations,
            clock=self._clock,
            sharing=self._sharing,
            train_s=run.train_s,
            steps=last.step if last else 0,
            samples=last.samples if last else 0,
            held_up_frac=self._held_up.frac,
            seed=self._spec.seed,
            stop_reason=outcome.reason,
            time_to_target_s=outcome.time_to_target_s,
            cpu_wait_s=cpu_wait_s(since=self._waited_before_s),
            timing=timing,
            step_times=step_times,
            windows=tuple(self._sharing.windows),
            slowdown=passed_s / run.train_s if step_times and run.train_s else None,
            note=(*notes, *reported, *saved),
            peak_memory_gib=devices.peak_memory_gib(self._device),
            memory_limit_gib=devices.memory_limit_gib(
                self._device,
                gpu_fraction=share.gpu_fraction,
                cpu_fraction=share.cpu_fraction,
                memory_gib=share.memory_gib,
            ),
            device=devices.device_of(self._device),
        )
