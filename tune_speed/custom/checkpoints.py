"""Checkpoints of a training function's run: its own state, beside clock and evaluations."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tune_speed.core.config import Config
from tune_speed.core.errors import StorageError
from tune_speed.core.records import PROTOCOL_VERSION, Clocks, Evaluation
from tune_speed.custom.spec import OwnSpec
from tune_speed.runtime import heartbeat
from tune_speed.runtime.sharing import CotenantHistory
from tune_speed.training.checkpoint import file
from tune_speed.training.checkpoint.file import BadCheckpoint, Header
from tune_speed.training.checkpoint.store import CheckpointStore
from tune_speed.training.trial import environment

_log = logging.getLogger(__name__)


class _Standing(Config):
    """What is kept beside the function's state."""

    evaluations: tuple[Evaluation, ...]
    reported_s: float | None
    clocks: Clocks
    seen: CotenantHistory


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A run as it stood."""

    state: Mapping[str, Any]
    """The function's own."""
    evaluations: tuple[Evaluation, ...]
    reported_s: float | None
    """The training clock where the function reports it itself [s]."""
    clocks: Clocks
    seen: CotenantHistory


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
        """Looks for nothing yet.

        Args:
            spec: of the trial, which names a place for checkpoints.
            device: its name.
            started_at: when the trial began: UTC, ISO 8601.
            now: a monotonic clock [s].
        """
        assert spec.checkpoint is not None
        self._spec, self._plan = spec, spec.checkpoint
        self._store = CheckpointStore(spec.checkpoint.place)
        self._identity = _identity(spec, device)
        self.started_at, self._now, self._last_s = started_at, now, now()
        self.notes: list[str] = []
        """What a reader of the trial's record must know of its checkpoints."""

    def is_due(self) -> bool:
        """Returns whether it is time to save."""
        return self._now() - self._last_s >= self._plan.every_s

    def save(self, run: Saved) -> None:
        """Saves the run, in the place of what was saved before."""
        heartbeat.beat()
        try:
            self._write(run)
        # A full disk, a state that cannot be saved: all of them cost this save only.
        except Exception as error:
            _log.warning("%s", error, exc_info=True)
            note = f"not saved at step {run.evaluations[-1].step}: {error}".splitlines()[0]
            self.notes = [each for each in self.notes if not each.startswith("not saved")] + [note]
        self._last_s = self._now()

    def find(self) -> Saved | None:
        """Returns what an earlier attempt at this very trial saved last, or None."""
        try:
            content = self._store.read()
            return None if content is None else self._read(content)
        except (StorageError, BadCheckpoint) as error:
            _log.warning("begun anew: %s", error)
            self.notes.append(f"begun anew: {error}")
            return None

    def _write(self, run: Saved) -> None:
        import torch

        from tune_speed.training.checkpoint.checkpoints import scratch_file

        step = max(1, run.evaluations[-1].step)
        standing = _Standing(
            evaluations=run.evaluations, reported_s=run.reported_s, clocks=run.clocks, seen=run.seen
        )
        payload = scratch_file()
        try:
            torch.save({"own": dict(run.state), "run": standing.model_dump_json()}, payload)
            header = Header(
                identity=self._identity,
                step=step,
                num_steps=step,
                recipe=self._spec.recipe.model_dump(mode="json"),
                first_batch_size=1,
                started_at=self.started_at,
                num_bytes=payload.tell(),
            )
            beginning = file.head(header, payload)
        except BaseException:
            payload.close()
            raise
        self._store.write(beginning, payload)

    def _read(self, content: bytes) -> Saved:
        from tune_speed.training.checkpoint.checkpoints import load, refuse_other

        header, payload = file.split(content)
        refuse_other(header.identity, self._identity)
        state = load(payload)
        standing = _Standing.model_validate_json(state["run"])
        self.started_at = header.started_at
        self.notes.append(f"resumed at step {header.step}")
        return Saved(
            state=state["own"],
            evaluations=standing.evaluations,
            reported_s=standing.reported_s,
            clocks=standing.clocks,
            seen=standing.seen,
        )


def _identity(spec: OwnSpec, device: str) -> dict[str, str]:
    """Returns what must be the same in a process that goes on with the trial."""
    return {
        "study": spec.study,
        "trial": spec.trial_id,
        "seed": str(spec.seed),
        "device": device,
        "protocol": str(PROTOCOL_VERSION),
        "version of tune_speed": environment()["tune_speed"],
        "workload": spec.workload.identity(),
        "parameters": spec.recipe.model_dump_json(),
    }
