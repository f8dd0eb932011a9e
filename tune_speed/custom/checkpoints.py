"""Checkpoints of a training function's run: its own state, with clock and evaluations."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from tune_speed.core.config import Config
from tune_speed.core.errors import StorageError
from tune_speed.core.records import PROTOCOL_VERSION, Clocks, Evaluation, StepTime
from tune_speed.core.words import Note, NoteKind
from tune_speed.custom.spec import OwnSpec
from tune_speed.runtime import heartbeat
from tune_speed.runtime.sharing import CotenantHistory
from tune_speed.training.checkpoint.store import BadCheckpoint, CheckpointStore, split
from tune_speed.training.trial import environment

_log = logging.getLogger(__name__)


class CountedSteps(Config):
    """What the training clock of a run on a shared device is made of: see `isolated_steps`."""

    steps: int
    """Those that count by their isolated time."""
    other_s: float
    """What counts as it passed [s]."""
    passed_s: float
    """What passed over the steps [s]."""
    marks: tuple[tuple[int, float], ...]
    """Steps and other seconds at each evaluation."""
    step_time: StepTime | None

    @classmethod
    def none(cls, evaluations: Sequence[Evaluation], passed_s: float) -> Self:
        """Returns the count of a run whose clock counts what passed."""
        marks = tuple((0, each.train_s) for each in evaluations)
        return cls(steps=0, other_s=passed_s, passed_s=0.0, marks=marks, step_time=None)


class Standing(Config):
    """How far a run is."""

    evaluations: tuple[Evaluation, ...]
    reported_s: float | None
    """The training clock where the function reports it itself [s]."""
    clocks: Clocks
    seen: CotenantHistory
    counted: CountedSteps | None = None
    """None: the clock counts what passed."""


class SavedRuns:
    """The checkpoints of one attempt at a trial. Whatever goes wrong with one costs no trial."""

    def __init__(
        self,
        spec: OwnSpec,
        *,
        device: str,
        started_at: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads nothing yet. The trial began at `started_at` (UTC, ISO 8601)."""
        assert spec.checkpoint is not None
        self._every_s, self._store = spec.checkpoint.every_s, CheckpointStore(spec.checkpoint.place)
        self._recipe = spec.recipe.model_dump(mode="json")
        # What must be the same in a process that resumes the trial.
        self._identity = {
            "study": spec.study,
            "trial": spec.trial_id,
            "seed": str(spec.seed),
            "device": device,
            "protocol": str(PROTOCOL_VERSION),
            "version of tune_speed": environment()["tune_speed"],
            "workload": spec.workload.identity(),
            "parameters": spec.recipe.model_dump_json(),
        }
        self.started_at, self._now, self._last_s = started_at, now, now()
        self.notes: list[Note] = []
        """What a reader of the trial's record must know of its checkpoints."""

    def is_due(self) -> bool:
        """Returns whether it is time to save."""
        return self._now() - self._last_s >= self._every_s

    def save(self, state: Mapping[str, Any], standing: Standing) -> None:
        """Saves the function's own state and how far its run is; they replace those before."""
        from tune_speed.training.checkpoint.checkpoints import noted, write_checkpoint

        heartbeat.beat()
        step = standing.evaluations[-1].step
        try:
            write_checkpoint(
                self._store,
                {"own": dict(state), "run": standing.model_dump_json()},
                identity=self._identity,
                # Headers count from 1; an evaluation may be of the untrained model.
                step=max(1, step),
                num_steps=max(1, step),
                recipe=self._recipe,
                first_batch_size=1,
                started_at=self.started_at,
            )
        # A full disk, a state that cannot be saved: all of them cost this save only.
        except Exception as error:
            _log.warning("%s", error, exc_info=True)
            self.notes = noted(self.notes, step, error)
        # After a failure too, so that a full disk is not tried again at each evaluation.
        self._last_s = self._now()

    def find(self) -> tuple[dict[str, Any], Standing] | None:
        """Returns state and standing that an earlier attempt at this very trial saved last."""
        from tune_speed.training.checkpoint.checkpoints import load, refuse_other

        try:
            content = self._store.read()
            if content is None:
                return None
            header, payload = split(content)
            refuse_other(header.identity, self._identity)
            saved = load(payload)
        except (StorageError, BadCheckpoint) as error:
            _log.warning("begun anew: %s", error)
            self.notes.append(Note.of(NoteKind.BEGUN_AGAIN, why=str(error)))
            return None
        self.started_at = header.started_at
        self.notes.append(Note.of(NoteKind.RESUMED, step=header.step))
        return dict(saved["own"]), Standing.model_validate_json(saved["run"])
