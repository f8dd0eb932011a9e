"""Files that the processes of trials leave in the study's folder, as the driver sees them.

A process writes the record of its trial, in case the driver dies first, and the weights, if they
may be the best; the others' are deleted.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from tune_speed.core.comparability import fastest
from tune_speed.core.errors import refuse_link
from tune_speed.core.records import TrialRecord
from tune_speed.runtime.atomic_file import write_atomically
from tune_speed.training.trial import KeepWeights


def trial_file(folder: Path, trial_id: str) -> Path:
    """Returns where the process of a trial writes its record."""
    return folder / "trials" / f"{trial_id}.json"


def write_trial_file(folder: Path, record: TrialRecord) -> None:
    """Writes a record from the trial's own process, whole or not at all.

    Does nothing where the study's folder is not visible: on another node without shared storage the
    driver's ledger alone has the record.
    """
    path = trial_file(folder, record.trial_id)
    if not path.parent.is_dir():
        return
    # A full disk, say: the driver writes the record too, and says so.
    with suppress(OSError), write_atomically(path) as file:
        file.write(record.model_dump_json().encode())


def read_trial_file(folder: Path, trial_id: str) -> TrialRecord | None:
    """Returns the record that a trial's process wrote, or None if there is no whole one."""
    path = trial_file(folder, trial_id)
    try:
        return TrialRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def weights_file(folder: Path, trial_id: str) -> Path:
    """Returns where the process of a trial leaves its weights."""
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
        """Returns where a trial that is about to start leaves its weights, and from which time."""
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
