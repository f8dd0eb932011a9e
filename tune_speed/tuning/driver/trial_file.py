"""A trial's record as its own process writes it, in case the driver dies first."""

from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from tune_speed.core.records import TrialRecord
from tune_speed.runtime.atomic_file import write_atomically


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
    except (FileNotFoundError, ValidationError):
        return None
