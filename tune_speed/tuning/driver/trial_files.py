"""What the processes of trials leave in files, as the driver sees them.

In the study's folder: the record of the trial, in case the driver dies first, and the weights, if
they may be the best. There, or in a shared place, a checkpoint, which is removed when the trial has
an outcome; what a killed process left is cleared when a session begins and ends.
"""

from collections.abc import Container, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from tune_speed.core.comparability import fastest
from tune_speed.core.errors import refuse_link
from tune_speed.core.records import TrialRecord
from tune_speed.runtime.atomic_file import write_atomically
from tune_speed.study.settings import SearchConfig
from tune_speed.tracking.store.opening import within
from tune_speed.training.checkpoint.store import check_place, local_path, saved_step
from tune_speed.training.trial import CheckpointPlan, KeepWeights

SUFFIX = ".ckpt"
# Time limit of clearing checkpoints [s]; the rest is for the next session.
CLEAR_S = 20.0
# Time limit of reading a checkpoint's header, for which the driver waits [s].
LOOK_S = 5.0


def trial_file(folder: Path, trial_id: str) -> Path:
    return folder / "trials" / f"{trial_id}.json"


def write_trial_file(folder: Path, record: TrialRecord) -> None:
    """Writes a record, whole or not at all; nothing where this node does not see the folder."""
    path = trial_file(folder, record.trial_id)
    if not path.parent.is_dir():
        return
    # A full disk, say: the driver writes the record too, and says so.
    with suppress(OSError), write_atomically(path) as file:
        file.write(record.model_dump_json().encode())


def read_trial_file(folder: Path, trial_id: str) -> TrialRecord | None:
    path = trial_file(folder, trial_id)
    try:
        return TrialRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def weights_file(folder: Path, trial_id: str) -> Path:
    return folder / "weights" / f"{trial_id}.pt"


class BestWeights:
    """Decides which trial keeps its weights, and deletes the others'."""

    def __init__(self, folder: Path, records: Iterable[TrialRecord]) -> None:
        """Deletes what an earlier session left of others than the best. Raises: StorageError."""
        self._folder, self._best = folder, fastest(records)
        place = weights_file(folder, "").parent
        refuse_link(place)
        own = weights_file(folder, self._best.trial_id) if self._best else None
        with suppress(OSError):  # Logging the model at the end reports what is missing.
            place.mkdir(exist_ok=True)
            for path in place.glob("t[0-9]*.pt*"):
                if path != own:
                    path.unlink()

    def plan(self, trial_id: str) -> KeepWeights:
        best_s = self._best.time_to_target_s if self._best else None
        return KeepWeights(file=str(weights_file(self._folder, trial_id)), at_most_s=best_s)

    def finished(self, record: TrialRecord) -> None:
        """Deletes the weights of the slower one: the trial's, or those of the best before it."""
        before = self._best
        self._best = fastest([r for r in (before, record) if r is not None])
        for each in (before, record):
            if each is not None and each is not self._best:
                with suppress(OSError):
                    weights_file(self._folder, each.trial_id).unlink(missing_ok=True)


class Checkpoints:
    """The places of a study's checkpoints."""

    def __init__(self, search: SearchConfig, *, study: str, folder: Path) -> None:
        """Makes the folder, in a shared place or in `folder`. Raises: ConfigError."""
        self._every_s = search.checkpoint_every_s
        self.place, shared = str(folder / "checkpoints"), search.storage_path
        if shared is not None and "://" in shared:
            self.place = f"{shared.rstrip('/')}/{study}"
        elif shared is not None:  # Trial processes have working folders of their own.
            self.place = str(Path(shared).expanduser().absolute() / study)
        if self._every_s is None:
            return
        check_place(self.place, path="search.storage_path")
        if (path := local_path(self.place)) is not None:
            with suppress(OSError):  # Trials say so in their notes, and run without.
                path.mkdir(parents=True, exist_ok=True)

    def plan(self, trial_id: str) -> CheckpointPlan | None:
        if self._every_s is None:
            return None
        place = f"{self.place}/{trial_id}{SUFFIX}"
        return CheckpointPlan(place=place, every_s=self._every_s)

    def saved_step(self, trial_id: str) -> int | None:
        """Returns the step that a trial would resume from; None if it would start from scratch."""
        plan = self.plan(trial_id)
        return None if plan is None else saved_step(plan.place, wait_s=LOOK_S)

    def clear(self, finished: Container[str]) -> None:
        """Removes what trials left that have their record. Waits `CLEAR_S` at most."""
        if self._every_s is None:
            return
        # In a thread: a shared place may not answer, and the search begins and ends all the same.
        # Any error is a backend's own: what is left costs space, no record.
        with suppress(Exception):
            within(CLEAR_S, partial(self._clear, finished))

    def _clear(self, finished: Container[str]) -> None:
        import fsspec

        files, place = fsspec.core.url_to_fs(self.place)
        for path in files.ls(place, detail=False) if files.exists(place) else []:
            trial_id, suffix, rest = path.rstrip("/").rpartition("/")[2].partition(SUFFIX)
            # Others' files may lie there too.
            if suffix and rest[:1] in ("", ".") and trial_id in finished:
                files.rm_file(path)
