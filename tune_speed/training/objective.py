"""From the specification of a trial to its record; nothing that a trial does wrong gets out."""

import traceback
from collections.abc import Callable, Generator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial

import torch

from tune_speed.core.errors import ConfigError, DeviceFailed, reason_of
from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.core.words import Note, NoteKind, StopKind, StopReason
from tune_speed.data.base import class_counts
from tune_speed.data.cache import prepare
from tune_speed.data.split import Splits, TrainedOn, make_splits
from tune_speed.runtime import device as devices
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.device_settings import device_settings
from tune_speed.runtime.sharing import KnownSteps, Sharing
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.training.autotune import loader_workers, micro_batch, step_options
from tune_speed.training.autotune.micro_batch import fastest, halved
from tune_speed.training.build import Job
from tune_speed.training.checkpoint.checkpoints import Checkpoints, identity_of
from tune_speed.training.checkpoint.store import BadCheckpoint, CheckpointStore, discard
from tune_speed.training.loop import Interrupted, train
from tune_speed.training.ranks import ALONE, Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.saved_model import save_model
from tune_speed.training.step.recorded import RECORDERS
from tune_speed.training.step.step import accumulation_of, micro_batch_of
from tune_speed.training.trial import TrialSpec, failure, make_record, utc_now, with_fields
from tune_speed.training.warm_up import LoneImage, open_meters
from tune_speed.training.worker import ends_process, open_device
from tune_speed.training.workload import Workload

# Yields the record so far (`capped`) after each evaluation but the last; takes a reason to stop
# there, or None to continue; returns the record.
Trial = Generator[TrialRecord, StopReason | None, TrialRecord]


@cache
def load_splits(workload: Workload, trained_on: TrainedOn = "train") -> Splits:
    """Returns the workload's splits, read once per process. Raises: DataError."""
    return make_splits(prepare(workload.dataset), workload.split, trained_on=trained_on)


def splits_of(spec: TrialSpec) -> Splits:
    """Returns the splits that the trial trains on and is judged by. Raises: DataError."""
    is_certified = spec.evaluated_on == "test"
    return load_splits(spec.workload, spec.workload.certify_on if is_certified else "train")


def run_trial(
    spec: TrialSpec,
    *,
    interrupt: Callable[[], bool] = lambda: False,
    refuse: tuple[type[Exception], ...] = (),
    ranks: Ranks = ALONE,
    warm: set[str] | None = None,
) -> Trial:
    """Runs one trial; whatever goes wrong in it becomes its status, reason and traceback.

    Out of memory: the micro-batch is halved and the accumulation doubled, so that the effective
    batch size and with it the learning rate stay; with a micro-batch of one, the outcome is `oom`.
    It is at once where this process is one of several `ranks`, which restart together. A set that
    does not fit on the device is no matter of the batch: then the outcome is `failed`, at once.

    The trial resumes from a checkpoint that an earlier process left, and removes it at its end.
    Into `warm`, one set for all trials of a process, go the throughput keys of the steps taken.

    Raises: Interrupted, which is no outcome of the trial, and errors of the kinds in `refuse`;
        `DeviceFailed` among them stands for what `is_device_failure` finds.
    """
    started_at = utc_now()
    passed_on: tuple[type[Exception], ...] = (Interrupted, *refuse)
    try:
        trial = _Trial(spec, interrupt, passed_on, started_at, ranks, warm)
        record = yield from trial.run()
    except passed_on:
        raise
    except Exception as error:
        if ends_process(error, refuse):
            raise DeviceFailed(reason_of(error)) from error
        result = failure(spec, error)
        # The device itself may be what is wrong.
        with suppress(ConfigError):
            device = devices.device_of(
                devices.resolve_device(spec.allotment.device), spec.recipe.devices
            )
            result = result.model_copy(update={"device": device})
        record = make_record(spec, spec.recipe, result, started_at=started_at)
    # Of several ranks, their supervisor does it.
    if spec.checkpoint is not None and ranks.size == 1:
        discard(spec.checkpoint.place)
    return record


@dataclass
class _Trial:
    """One trial in this process, in as many attempts as memory and its checkpoint take."""

    _spec: TrialSpec
    _interrupt: Callable[[], bool]
    _passed_on: tuple[type[Exception], ...]
    _started_at: str
    _ranks: Ranks
    _warm: set[str] | None

    def __post_init__(self) -> None:
        self._device = open_device(self._spec.allotment)
        self._checkpoints: Checkpoints | None = None
        self._notes: list[Note] = []

    def run(self) -> Trial:
        spec, key = self._spec, devices.device_key(self._device)
        # Of ranks that share a device, as those on a CPU do, one takes its place there.
        has_place = self._ranks.gather(key).index(key) == self._ranks.rank
        place = Sharing.open(
            key,
            study=spec.study,
            trial=spec.trial_id,
            may_have_company=spec.allotment.max_cotenants > 0,
            steps=KnownSteps(times=spec.step_times, due=spec.due_step_times, warm=self._warm),
            longest_pause_s=spec.allotment.longest_pause_s,
        )
        with place if has_place else nullcontext(Sharing.alone()) as sharing:
            open_meters(self._device, sharing, self._ranks)
            return (yield from self._attempts(sharing))

    def _attempts(self, sharing: Sharing) -> Trial:
        spec, device = self._spec, self._device
        clock = self._new_clock(sharing)
        with clock.span("setup_s"):
            splits = splits_of(spec)
        checkpoints = self._checkpoints = self._open_checkpoints()
        recipe: Recipe | None = None
        while True:
            if recipe is None:
                with clock.span("compile_s"):
                    recipe, first_batch_size = self._begin_with(splits, sharing.turnstile)
            try:
                result = yield from self._train(recipe, splits, clock, sharing)
                result = with_micro_batch_note(result, first_batch_size, recipe)
                return self._record(recipe, result)
            except BadCheckpoint as error:
                assert checkpoints is not None
                checkpoints.start_over(str(error))
                message = None
            except Exception as error:
                # Once memory ran out, a micro-batch that is too small is no way out either.
                is_smaller = recipe.batch_size != first_batch_size
                if not (
                    devices.is_out_of_memory(error) or (isinstance(error, LoneImage) and is_smaller)
                ):
                    raise
                message = traceback.format_exc()
            # Outside the handler: its traceback would keep the failed run's tensors alive.
            devices.release_memory(device)
            clock = self._new_clock(sharing)
            if message is None:
                recipe = None
                continue
            smaller = halved(recipe) if self._ranks.size == 1 else None
            if smaller is None:
                return self._record(recipe, self._out_of_memory(recipe, message))
            recipe = smaller
            if checkpoints is not None:
                checkpoints.drop()

    def _new_clock(self, sharing: Sharing) -> Clock:
        # Ranks do not end their spans together, as a sum over their counters would need.
        return Clock(
            synchronize=devices.synchronizer(self._device),
            turnstile=sharing.turnstile,
            energy_j=sharing.energy_j if self._ranks.size == 1 else lambda: None,
        )

    def _open_checkpoints(self) -> Checkpoints | None:
        spec = self._spec
        if spec.checkpoint is None:
            return None
        checkpoints = Checkpoints(
            spec.checkpoint,
            CheckpointStore(spec.checkpoint.place),
            identity=identity_of(spec, self._device),
            started_at=self._started_at,
            ranks=self._ranks,
        )
        batch_size = spec.recipe.batch_size
        checkpoints.look(most_batch_size=batch_size if isinstance(batch_size, int) else None)
        self._started_at = checkpoints.started_at
        return checkpoints

    def _begin_with(self, splits: Splits, turnstile: Turnstile) -> tuple[Recipe, int]:
        checkpoints, chosen = self._checkpoints, self._spec.recipe
        if checkpoints is not None and checkpoints.recipe is not None:
            assert checkpoints.first_batch_size is not None
            return checkpoints.recipe, checkpoints.first_batch_size
        if self._ranks.is_first:
            self._notes.clear()
            chosen = resolve(
                chosen, splits, device=self._device, turnstile=turnstile, on_note=self._notes.append
            )
        recipe = self._ranks.broadcast(chosen)
        if checkpoints is not None:
            checkpoints.first_batch_size = micro_batch_of(recipe)
        return recipe, micro_batch_of(recipe)

    def _train(
        self, recipe: Recipe, splits: Splits, clock: Clock, sharing: Sharing
    ) -> Generator[TrialRecord, StopReason | None, RunResult]:
        spec, where = self._spec, (self._device, self._spec.evaluated_on, self._ranks)
        job = Job(spec.workload, recipe, splits, spec.seed, *where)
        run = train(
            job,
            clock=clock,
            sharing=sharing,
            interrupt=self._interrupt,
            checkpoints=self._checkpoints,
            on_end=partial(save_model, spec.keep if self._ranks.is_first else None, job),
        )
        so_far: RunResult | None = None
        reason: StopReason | None = None
        try:
            while True:
                so_far = self._completed(run.send(reason))
                reason = yield self._record(recipe, so_far)
        except StopIteration as end:
            return self._completed(end.value)
        except Exception as error:
            if (
                so_far is None
                or devices.is_out_of_memory(error)
                or isinstance(error, self._passed_on)
                or ends_process(error, self._passed_on)
            ):
                raise
            return with_fields(so_far, failure(spec, error))
        finally:
            run.close()

    def _completed(self, result: RunResult) -> RunResult:
        kept = self._checkpoints.notes if self._checkpoints else ()
        note = (*result.note, *self._notes, *kept)
        update: dict[str, object] = {"memory_limit_gib": self._limit_gib(), "note": note}
        if self._device.type == "cuda":
            whole_gib = devices.memory_limit_gib(self._device, gpu_fraction=1.0, cpu_fraction=1.0)
            update["gpu_memory_gib"] = whole_gib
        return result.model_copy(update=update)

    def _record(self, recipe: Recipe, result: RunResult) -> TrialRecord:
        settings = device_settings(self._device)
        return make_record(
            self._spec, recipe, result, started_at=self._started_at, settings=settings
        )

    def _limit_gib(self) -> float:
        limits = {"gpu_fraction", "cpu_fraction", "memory_gib"}
        share = self._spec.allotment.model_dump(include=limits)
        return devices.memory_limit_gib(self._device, **share)

    def _out_of_memory(self, recipe: Recipe, message: str) -> RunResult:
        return RunResult(
            status=Status.OOM,
            seed=self._spec.seed,
            stop_reason=StopReason.of(StopKind.OUT_OF_MEMORY, batch_size=recipe.batch_size),
            peak_memory_gib=devices.peak_memory_gib(self._device),
            memory_limit_gib=self._limit_gib(),
            batch_size=recipe.batch_size,
            accumulation_steps=accumulation_of(recipe),
            device=devices.device_of(self._device, recipe.devices),
            traceback=message,
        )


def with_micro_batch_note(result: RunResult, first_batch_size: int, ran: Recipe) -> RunResult:
    """Returns the result, whose reason says so if a larger micro-batch ran out of memory."""
    if ran.batch_size == first_batch_size:
        return result
    sizes = {"first_batch_size": first_batch_size, "ran_batch_size": micro_batch_of(ran)}
    return result.model_copy(update={"stop_reason": result.stop_reason.with_figures(**sizes)})


def resolve(
    recipe: Recipe,
    splits: Splits,
    *,
    device: torch.device,
    turnstile: Turnstile,
    on_note: Callable[[Note], None] = lambda note: None,
) -> Recipe:
    """Returns `recipe` with values for all that is `auto`; `on_note` gets what was chosen so."""

    def note_text(text: str) -> None:
        on_note(Note.of(NoteKind.OTHER, text=text))

    counts = class_counts(splits.train.labels, splits.num_classes)
    recipe = recipe.with_class_weights(counts)
    recipe = loader_workers.with_loader(recipe, splits, device=device, on_note=on_note)
    with_batch = step_options.provisional(recipe)
    with_batch = micro_batch.resolved(with_batch, splits, device=device)
    with_batch = fastest(with_batch, splits, device=device)
    left = {name: "auto" for name in step_options.unsettled(recipe)}
    recipe = with_batch.model_copy(update=left)
    recipe = step_options.resolved(
        recipe, splits, device=device, turnstile=turnstile, on_note=note_text
    )
    if recipe.cuda_graph is True and device.type in RECORDERS and not recipe.records_update:
        note_text("weights are updated outside of the recorded step")
    return loader_workers.resolved(recipe, splits, device=device)


def finish(trial: Trial, *, on_report: Callable[[TrialRecord], None]) -> TrialRecord:
    try:
        while True:
            on_report(next(trial))
    except StopIteration as end:
        record: TrialRecord = end.value
        return record
