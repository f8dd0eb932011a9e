"""A trial's checkpoints: saved now and then while it trains, and found again by a later process.

A trial resumes only where the run would be the same: trial, seed, recipe, workload, device and
versions agree (`identity_of`), and the file is whole. Otherwise it starts over, and its record
shows why. Nothing that goes wrong with a checkpoint costs a trial.
"""

import io
import logging
import os
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

import torch

from tune_speed.components.plugins import registry
from tune_speed.core.config import canonical_hash
from tune_speed.core.errors import StorageError
from tune_speed.core.records import PROTOCOL_VERSION
from tune_speed.core.text import printable
from tune_speed.core.words import Note, NoteKind
from tune_speed.runtime import heartbeat
from tune_speed.runtime.device import device_of
from tune_speed.training.accounts import ProgressState
from tune_speed.training.checkpoint.state import State, Training, progress_of, restore, state_of
from tune_speed.training.checkpoint.store import BadCheckpoint, CheckpointStore, Header, head, split
from tune_speed.training.ranks import Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import CheckpointPlan, TrialSpec, environment

LONGEST_REASON = 200
"""Characters of it that a record's note shows."""

_log = logging.getLogger(__name__)

Found = tuple[Header, State]


class Checkpoints:
    """Those of one attempt at a trial, in one of its ranks."""

    def __init__(
        self,
        plan: CheckpointPlan,
        store: CheckpointStore,
        *,
        identity: dict[str, str],
        started_at: str,
        ranks: Ranks,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Rank 0 alone uses `store`; `identity` is `identity_of`'s, `started_at` UTC (ISO 8601)."""
        self.started_at = started_at
        self.recipe: Recipe | None = None
        """As it runs; None until it is known."""
        self.first_batch_size: int | None = None
        """Micro-batch of the trial's first attempt."""
        self.notes: list[Note] = []
        """What a reader of the trial's record must know of its checkpoints."""
        self._plan, self._store, self._identity = plan, store, identity
        self._ranks, self._now = ranks, now
        self._state: State | None = None
        self._last_s = now()
        self._num_failures = 0

    # --- Resuming

    def look(self, *, most_batch_size: int | None) -> None:
        """Looks for a checkpoint of micro-batches up to `most_batch_size`, in all ranks at once."""
        found = self._find(most_batch_size) if self._ranks.is_first else None
        found = self._ranks.broadcast(found)
        if found is None:
            return
        header, self._state = found
        self.recipe = Recipe.model_validate(header.recipe)
        self.first_batch_size = header.first_batch_size
        self.started_at = header.started_at
        figures = {"step": header.step, "num_steps": header.num_steps}
        self.notes.append(Note.of(NoteKind.RESUMED, **figures))

    @property
    def progress(self) -> ProgressState | None:
        """How far the resumed run is; None: it begins with its first step."""
        return None if self._state is None else progress_of(self._state)

    def restore(self, training: Training) -> None:
        """Makes the run the one that was saved, and forgets what was read.

        Raises: BadCheckpoint in all ranks if it fails in one; the run must then start over.
        """
        state, self._state, why_not = self._state, None, None
        assert state is not None, "called without a checkpoint"
        try:
            restore(training, state)
        # What does not fit may fail in any way; the file's digest and identity were right.
        except Exception as error:
            _log.warning("the checkpoint %s does not fit", self._store.place, exc_info=True)
            why_not = f"it does not fit: {type(error).__name__}: {error}"
        reasons = [reason for reason in self._ranks.gather(why_not) if reason is not None]
        if reasons:
            raise BadCheckpoint(reasons[0])

    def start_over(self, why: str) -> None:
        """Forgets the checkpoint that was found, which this run cannot resume."""
        self._state = self.recipe = self.first_batch_size = None
        # A file's own names may be in it.
        why = printable(why.splitlines()[0])[:LONGEST_REASON]
        self.notes = [Note.of(NoteKind.UNUSABLE, why=why)]

    def _find(self, most_batch_size: int | None) -> Found | None:
        try:
            content = self._store.read()
            return None if content is None else self._checked(content, most_batch_size)
        except StorageError as error:
            self.notes.append(Note.of(NoteKind.BEGUN_AGAIN, why=str(error)))
        except BadCheckpoint as error:
            _log.warning("the checkpoint %s is not used: %s", self._store.place, error)
            self.start_over(str(error))
        return None

    def _checked(self, content: bytes, most_batch_size: int | None) -> Found:
        header, payload = split(content)
        refuse_other(header.identity, self._identity)
        state = load(payload)
        try:
            recipe, progress = Recipe.model_validate(header.recipe), progress_of(state)
        except Exception as error:
            raise BadCheckpoint(f"it does not fit: {type(error).__name__}") from error
        if progress.steps != header.step:
            raise BadCheckpoint("its header is of another step")
        if not isinstance(recipe.batch_size, int):
            raise BadCheckpoint("its recipe has no micro-batch")
        if most_batch_size is not None and recipe.batch_size > most_batch_size:
            raise BadCheckpoint("memory ran out with its micro-batch")
        return header, state

    def drop(self) -> None:
        """Removes what was saved: the run begins with its first step again, in another way."""
        if self._ranks.is_first:
            try:
                self._store.remove()
            except StorageError as error:
                _log.warning("%s", error)
        self._state = self.recipe = None
        self.notes = [note for note in self.notes if note.kind is not NoteKind.RESUMED]
        self._last_s = self._now()

    # --- Saving

    def save_if_due(self, training: Training) -> None:
        """Saves the run if that was long ago; called between two steps, off the training clock."""
        wait_s = self._plan.every_s * 2**self._num_failures
        if self._ranks.broadcast(self._now() - self._last_s >= wait_s):
            self.save(training)

    def save(self, training: Training, *, wait_s: float | None = None) -> None:
        """Saves the run between two steps, in all ranks at once; a failure costs no trial.

        `wait_s` is the longest wait for the store [s]; None: as for all calls.
        """
        state = state_of(training)
        if not self._ranks.is_first:
            return
        heartbeat.beat()
        try:
            self._write(training, state, wait_s=wait_s)
            self._num_failures = 0
        # A full disk, a store that is away, no memory left for it: all of them cost this save only.
        except (StorageError, OSError, RuntimeError, MemoryError) as error:
            self._num_failures += 1
            _log.warning("%s", error)
            self.notes = noted(self.notes, training.progress.steps, error)
        heartbeat.beat()
        self._last_s = self._now()

    def _write(self, training: Training, state: State, *, wait_s: float | None) -> None:
        recipe = training.job.recipe
        assert isinstance(recipe.batch_size, int)
        write_checkpoint(
            self._store,
            state,
            wait_s=wait_s,
            identity=self._identity,
            step=training.progress.steps,
            num_steps=training.progress.total_steps,
            recipe=recipe.model_dump(mode="json"),
            first_batch_size=self.first_batch_size or recipe.batch_size,
            started_at=self.started_at,
        )


def identity_of(spec: TrialSpec, device: torch.device) -> dict[str, str]:
    """Returns what must be the same in a process that resumes the trial, by name."""
    left_out = {"recipe", "step_times", "due_step_times", "keep", "checkpoint", "proposal_reason"}
    fields = spec.model_dump(mode="json", exclude=left_out)
    recipe = fields["recipe"] = spec.recipe.identity_fields()
    fields["allotment"]["device"] = None
    for name in ("longest_pause_s", "price_per_hour"):
        fields["allotment"].pop(name, None)
    # The micro-batch may differ: a trial that ran out of memory continues with a smaller one.
    if spec.recipe.batch_size != "auto":
        recipe["effective_batch_size"] = spec.recipe.samples_per_step
        recipe["batch_size"] = recipe["accumulation_steps"] = None
    versions = environment()
    shown = ("tune_speed", "torch", "torchvision", "timm")
    return {
        "study": spec.study,
        "trial": spec.trial_id,
        "seed": str(spec.seed),
        "device": str(device_of(device, spec.recipe.devices)),
        "protocol": str(PROTOCOL_VERSION),
        **{f"version of {name}": versions[name] for name in shown if name in versions},
        **{f"plugin {title}": source for title, source in registry.hashes().items()},
        "specification": canonical_hash(fields),
    }


def refuse_other(saved: dict[str, str], ours: dict[str, str]) -> None:
    """Raises: BadCheckpoint if a checkpoint is not of this run; the first difference is named."""
    for word in [*ours, *saved]:
        if saved.get(word) != ours.get(word):
            then, now = saved.get(word, "unknown"), ours.get(word, "unknown")
            raise BadCheckpoint(f"its {word} is {then[:80]}, not {now[:80]}")


def load(payload: bytes | memoryview) -> State:
    """Returns what was saved, on the host; nothing in it is run. Raises: BadCheckpoint."""
    try:
        state: Any = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    # torch has no list of what it raises for content that is not its own.
    except Exception as error:
        raise BadCheckpoint(f"its content cannot be read: {type(error).__name__}") from error
    if not isinstance(state, dict):
        raise BadCheckpoint("its content is another")
    return state


def write_checkpoint(
    store: CheckpointStore, state: State, *, wait_s: float | None = None, **header: Any
) -> None:
    """Puts a state into a store, with a header of these fields. Raises: StorageError and others."""
    payload = _scratch_file()
    try:
        torch.save(state, payload)
        beginning = head(Header(**header, num_bytes=payload.tell()), payload)
    except BaseException:
        payload.close()
        raise
    store.write(beginning, payload, wait_s=wait_s)


def noted(notes: list[Note], step: int, error: Exception) -> list[Note]:
    """Returns notes of a record, with one on the last save that failed."""
    why = (str(error).splitlines() or [""])[0]
    note = Note.of(NoteKind.NOT_SAVED, step=step, why=why)
    return [each for each in notes if each.kind is not NoteKind.NOT_SAVED] + [note]


def _scratch_file() -> IO[bytes]:
    # Not in this process's memory, whose peak is a result of the trial.
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("tune_speed", os.MFD_CLOEXEC), "w+b")
    return tempfile.TemporaryFile()
