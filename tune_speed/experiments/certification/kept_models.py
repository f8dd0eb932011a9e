"""The networks of certified runs: the best run of each finalist, beside the session's ledger."""

import shutil
from pathlib import Path

from tune_speed.core.errors import refuse_link, writing
from tune_speed.core.event_log import latest_log
from tune_speed.core.records import TrialRecord
from tune_speed.runtime.turnstile import file_name
from tune_speed.training.trial import KeepWeights


def keep_of(ledger: Path, name: str) -> KeepWeights:
    """Returns where a finalist's runs leave the best of their networks. Raises: StorageError."""
    folder = ledger.with_suffix(".models")
    refuse_link(folder)
    with writing(folder):
        folder.mkdir(exist_ok=True)
    return KeepWeights(file=str(folder / f"{file_name(name)}.pt"), since=0.0)


def save_best(folder: Path, best: TrialRecord, save: Path) -> Path | None:
    """Copies the network of the best recipe to `save`, and returns that.

    None: no run left one, as they ran before, or on a node that does not share the study's folder.

    Raises: StorageError, ConfigError if it cannot be written.
    """
    ledger = latest_log(folder, "certify", again=False)
    kept = Path(keep_of(ledger, f"{best.study}/{best.trial_id}").file)
    if not kept.is_file():
        return None
    with writing(save):
        shutil.copyfile(kept, save)
    return save
