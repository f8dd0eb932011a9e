"""A study's own write-ahead log: one JSON line per event, on disk before anything else happens.

What Optuna is told, what MLflow shows and what `--resume` does are all derived from it.

| event         | fields                      | written                                            |
|---------------|-----------------------------|----------------------------------------------------|
| `study`       | study, hashes, versions     | once, when the study begins                        |
| `warm_start`  | study, trials               | once for each study that this one learns from      |
| `proposed`    | trial_id, params, seed,     | before the trial starts                            |
|               | reason, expected, cost      |                                                    |
| `finished`    | record                      | when the trial ended, whatever its status          |
| `interrupted` | trial_id, reason            | when it was stopped without an outcome             |
"""

import errno
import fcntl
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.core.records import TrialRecord
from tune_speed.tuning.driver.prior_trials import prior_from_json, prior_to_json
from tune_speed.tuning.driver.trial_file import read_trial_file
from tune_speed.tuning.policy.base import Cost, PriorTrial, Proposal
from tune_speed.tuning.policy.curve_table import Expected

LEVEL = 1
"""Of zlib: more saves little, and takes longer."""


class PackedRecords(Mapping[str, TrialRecord]):
    """Records by trial id, in the order in which they came."""

    def __init__(self) -> None:
        """Holds nothing yet."""
        self._packed: dict[str, bytes] = {}

    def add(self, record: TrialRecord) -> None:
        """Keeps a record; one of the same trial is replaced."""
        data = record.model_dump_json().encode()
        self._packed[record.trial_id] = zlib.compress(data, LEVEL)

    def __getitem__(self, trial_id: str) -> TrialRecord:
        """Returns an equal record, made anew. Raises: KeyError."""
        return TrialRecord.model_validate_json(zlib.decompress(self._packed[trial_id]))

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._packed

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


_TRIAL_ID = re.compile(r"t[0-9]{4,18}")
BALLAST_BYTES = 1 << 20
"""Kept aside on the disk and let go when it is full, so that what runs can still be recorded."""


class Ledger:
    """An open ledger, held by one driver at a time."""

    def __init__(self, folder: Path) -> None:
        """Opens the study's folder, creating it if needed.

        Raises: ConfigError if another driver holds the study; StorageError if the folder cannot be
            written or a line of the ledger is damaged.
        """
        self.folder = folder
        self.path = folder / "ledger.jsonl"
        self._ballast = folder / ".ballast"
        self.header: dict[str, Any] | None = None
        self.proposals: dict[str, Proposal] = {}
        self.costs: dict[str, Cost | None] = {}
        """What was known of a trial's cost when it was proposed."""
        self.records = PackedRecords()
        self.prior_trials: dict[str, tuple[PriorTrial, ...]] = {}
        """What the study learns from, by the study that it comes from."""
        try:
            (folder / "trials").mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            self._lock()
            self._read()
            self._make_ballast()
            self._take_left_behind()
        except OSError as error:
            raise _storage_error(folder, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets the study go."""
        self._ballast.unlink(missing_ok=True)
        os.close(self._file)

    @property
    def unfinished(self) -> tuple[Proposal, ...]:
        """Trials that were proposed and have no record."""
        return tuple(p for trial_id, p in self.proposals.items() if trial_id not in self.records)

    def begin(self, header: Mapping[str, Any]) -> None:
        """Writes what the study is."""
        assert self.header is None
        self._append({"event": "study", **header})
        self.header = dict(header)

    def warm_started(self, study: str, trials: Sequence[PriorTrial]) -> None:
        """Writes what is learned from another study: MLflow may forget it, a resumed search not."""
        assert study not in self.prior_trials, study
        fields = {"study": study, "trials": [prior_to_json(trial) for trial in trials]}
        self._append({"event": "warm_start", **fields})
        self.prior_trials[study] = tuple(trials)

    def proposed(self, proposal: Proposal, *, seed: int, cost: Cost | None = None) -> None:
        """Writes that a trial is about to start, and what it was taken to cost then."""
        self.proposals[proposal.trial_id] = proposal
        self.costs[proposal.trial_id] = cost
        fields = {"trial_id": proposal.trial_id, "params": proposal.params, "seed": seed}
        why = {"reason": proposal.reason, "expected": proposal.expected, "cost": cost}
        self._append({"event": "proposed", **fields, **why})

    def finished(self, record: TrialRecord) -> None:
        """Writes a trial's record. A second record of a trial is an error of ours."""
        assert record.trial_id not in self.records, f"{record.trial_id} finished twice"
        self.records.add(record)
        self._append({"event": "finished", "record": record.model_dump(mode="json")})

    def interrupted(self, trial_id: str, *, reason: str) -> None:
        """Writes that a trial was stopped without an outcome; resuming runs it again."""
        self._append({"event": "interrupted", "trial_id": trial_id, "reason": reason})

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"a study must be run by one process at a time, but another one holds {self.path}."
                " Wait for it, stop it, or give this study another name with --set study=NAME."
            ) from None

    def _read(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._file, whole)  # The driver was killed within a write.
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            self._take(line, number)

    def _take_left_behind(self) -> None:
        """Records what trial processes wrote before the driver could, as it was killed."""
        for proposal in self.unfinished:
            record = read_trial_file(self.folder, proposal.trial_id)
            if record is not None and record.trial_id == proposal.trial_id:
                self.finished(record)

    def _take(self, line: bytes, number: int) -> None:
        try:
            event = json.loads(line)
            kind = event.pop("event")
            if kind == "study":
                self.header = event
            elif kind == "proposed":
                proposal, cost = _proposal(event), event.get("cost")
                self.proposals[proposal.trial_id] = proposal
                self.costs[proposal.trial_id] = None if cost is None else Cost(*cost)
            elif kind == "warm_start":
                trials = tuple(prior_from_json(trial) for trial in event["trials"])
                self.prior_trials[event["study"]] = trials
            elif kind == "finished":
                record = TrialRecord.model_validate(event["record"])
                _checked_id(record.trial_id)
                self.records.add(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StorageError(
                f"{self.path}:{number}: every line must be an event as JSON, but this one is"
                f" damaged ({type(error).__name__}). Mend or remove the line, or start the study"
                " under another name."
            ) from error

    def _append(self, event: Mapping[str, Any]) -> None:
        line = json.dumps(event, allow_nan=False).encode() + b"\n"
        try:
            self._write(line)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise _storage_error(self.path, error) from error
            self._let_ballast_go(line, error)

    def _write(self, line: bytes) -> None:
        """Appends `line` and waits for the disk. A write that fails leaves no part of it."""
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError:
            if stat.S_ISREG(os.fstat(self._file).st_mode):
                os.ftruncate(self._file, size)
            raise

    def _let_ballast_go(self, line: bytes, error: OSError) -> None:
        """Records `line` in the room that was kept aside. Raises: StorageError in any case."""
        if self._ballast.exists():
            self._ballast.unlink()
            self._write(line)
        raise _storage_error(self.path, error) from error

    def _make_ballast(self) -> None:
        with self._ballast.open("wb") as file:
            file.write(os.urandom(BALLAST_BYTES))  # Zeros might be stored as nothing.
            os.fsync(file.fileno())


def _proposal(event: Mapping[str, Any]) -> Proposal:
    """Returns what was proposed; ledgers of older versions give no reason and no expectation."""
    expected = event.get("expected")
    return Proposal(
        trial_id=_checked_id(event["trial_id"]),
        params=dict(event["params"]),
        reason=str(event.get("reason", "")),
        expected=None if expected is None else Expected(*expected),
    )


def _checked_id(trial_id: str) -> str:
    """Returns `trial_id`, of which files are named. Raises: ValueError, TypeError if it is none."""
    if not _TRIAL_ID.fullmatch(trial_id):
        raise ValueError("no trial's id")
    return trial_id


def _storage_error(path: Path, error: OSError) -> StorageError:
    advice = "Free some space" if error.errno == errno.ENOSPC else "Choose another folder"
    return StorageError(
        f"{path} must be writable, but got: {error.strerror}. {advice} and go on with --resume;"
        " no finished trial is lost."
    )
