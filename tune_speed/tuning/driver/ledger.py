"""A study's write-ahead log: one JSON line per event, on disk before anything else happens.

What Optuna knows, what MLflow shows and what `--resume` does are all derived from it.

| event         | fields                      | written                                            |
|---------------|-----------------------------|----------------------------------------------------|
| `study`       | study, hashes, versions     | once, when the study begins                        |
| `warm_start`  | study, trials               | once for each study that this one learns from      |
| `proposed`    | trial_id, params, seed,     | before the trial starts                            |
|               | reason, cost                |                                                    |
| `finished`    | record                      | when the trial ended, whatever its status          |
| `interrupted` | trial_id, reason            | when it was stopped without an outcome             |
| `steered`     | request, at, text, refused, | when a person's request was acted on, before its   |
|               | point, configured           | effect: what was asked, and what came of it        |
| `ended`       | reason                      | when a search ended before its budget was used up  |
| `timed`       | windows, step_times         | when records are re-clocked by step times that are |
|               |                             | surer now; windows: measured beside trials         |
"""

import errno
import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from tune_speed.core.errors import StorageError, refuse_link, unwritable
from tune_speed.core.event_log import EventLog, LogAdvice, MisplacedEvent
from tune_speed.core.records import PROTOCOL_VERSION, StepTime, TrialRecord
from tune_speed.core.text import setting, switch
from tune_speed.core.version import __version__
from tune_speed.core.words import ProposalReason, StopReason
from tune_speed.runtime.pooled_times import reclocked
from tune_speed.tuning.driver.prior_trials import prior_from_json, prior_to_json
from tune_speed.tuning.driver.requests import Answer
from tune_speed.tuning.driver.trial_files import read_trial_file
from tune_speed.tuning.policy.base import Cost, PriorTrial, Proposal

# Of zlib: more saves little, and takes longer.
LEVEL = 1
# Space on the disk that is set aside, and freed when it is full, so that records still fit.
BALLAST_BYTES = 1 << 20
_TRIAL_ID = re.compile(r"t[0-9]{4,18}")


def advice() -> LogAdvice:
    """Returns what messages about a ledger advise."""
    name, resume, rebuild = setting("study", "NAME"), switch("resume"), switch("from-mlflow")
    return LogAdvice(
        locked=f"Wait for it, stop it, or give this study another name with {name}.",
        damaged=f"move the file away and rebuild it from MLflow with {resume} {rebuild}, or start"
        " the study under another name",
        unwritable="set TUNE_SPEED_STUDIES to another folder (a study that was begun moves with"
        f" it), and continue with {resume}; no finished trial is lost",
    )


class PackedRecords(Mapping[str, TrialRecord]):
    """Records by trial id, compressed, in the order in which they came."""

    def __init__(self) -> None:
        self._packed: dict[str, tuple[bytes, int]] = {}
        """Records, each with the number of re-clockings that came before it."""
        self._reclockings: list[Mapping[str, StepTime]] = []

    def add(self, record: TrialRecord) -> None:
        """Stores a record; one of the same trial is replaced."""
        # Packed, the driver needs 5 kB a trial, as measured with 1,000 trials of 20 evaluations.
        data = zlib.compress(record.model_dump_json().encode(), LEVEL)
        self._packed[record.trial_id] = data, len(self._reclockings)

    def reclock(self, step_times: Mapping[str, StepTime]) -> None:
        """Makes the clocks of all records so far of these step times, where they have others."""
        # When they are read: unpacking 20,000 of them takes as long as reading the ledger.
        self._reclockings.append(step_times)

    def __getitem__(self, trial_id: str) -> TrialRecord:
        """Returns an equal record, a new object each time. Raises: KeyError."""
        data, number = self._packed[trial_id]
        record = TrialRecord.model_validate_json(zlib.decompress(data))
        for step_times in self._reclockings[number:]:
            record = reclocked(record, step_times)
        return record

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._packed

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


class Ledger(AbstractContextManager["Ledger"]):
    """An open ledger, held by one driver at a time."""

    def __init__(self, folder: Path) -> None:
        """Opens or creates the folder. Raises: ConfigError if a driver holds it; StorageError."""
        self.folder = folder
        for name in ("trials", "weights", "checkpoints", "rebuilt"):
            refuse_link(folder / name)
        self._ballast = folder / ".ballast"
        self._new_folders = [each for each in (folder, folder.parent) if not os.path.exists(each)]
        self.header: dict[str, Any] | None = None
        self.proposals: dict[str, Proposal] = {}
        self.costs: dict[str, Cost | None] = {}
        """The predicted cost of each trial when it was proposed."""
        self.records = PackedRecords()
        self.unproposed: set[str] = set()
        """Trials with a record and without an event `proposed`: their record has what was."""
        self.windows: list[StepTime] = []
        """Windows of step times that no trial measured."""
        self.answers: dict[str, Answer] = {}
        """What came of people's requests, by their ids, in the order of the answers."""
        self.prior_trials: dict[str, tuple[PriorTrial, ...]] = {}
        """What the study learns from, by the study that it comes from."""
        self._log = EventLog(folder / "ledger.jsonl", what="a study", advice=advice())
        self._log.replay(self._replay)
        try:
            (folder / "trials").mkdir(exist_ok=True)
            # A new file: what has the name may be a link, or another name of a file elsewhere.
            self._ballast.unlink(missing_ok=True)
            with self._ballast.open("xb") as file:
                file.write(os.urandom(BALLAST_BYTES))  # File systems may store zeros as nothing.
                os.fsync(file.fileno())
        except OSError as error:
            self._log.close()
            place = Path(error.filename or self._ballast)
            raise unwritable(place, error, hint=advice().unwritable) from error
        # A driver that was killed may not have recorded what trial processes wrote.
        for proposal in self.unfinished:
            record = read_trial_file(folder, proposal.trial_id)
            if record is not None and record.trial_id == proposal.trial_id:
                self.finished(record)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the ledger, for another driver to open; of a study that never began none stays."""
        # A disk that cannot be written must not hide why the search ends.
        with suppress(OSError):
            self._ballast.unlink(missing_ok=True)
            # By its size: it may be another file than was opened, rebuilt from MLflow.
            if not self._log.path.stat().st_size:
                (self.folder / "trials").rmdir()
                self._log.path.unlink()
                for folder in self._new_folders:
                    folder.rmdir()
        self._log.close()

    @property
    def unfinished(self) -> tuple[Proposal, ...]:
        return tuple(p for trial_id, p in self.proposals.items() if trial_id not in self.records)

    @property
    def workload_hash(self) -> str:
        """Of the workload with its data, as the study began with it."""
        assert self.header is not None, "the study has not begun"
        return str(self.header["workload_hash"])

    def begin(self, header: Mapping[str, Any]) -> None:
        assert self.header is None
        self._append("study", **header)
        self.header = dict(header)

    def warm_started(self, study: str, trials: Sequence[PriorTrial]) -> None:
        assert study not in self.prior_trials, study
        self._append("warm_start", study=study, trials=[prior_to_json(trial) for trial in trials])
        self.prior_trials[study] = tuple(trials)

    def proposed(self, proposal: Proposal, *, seed: int, cost: Cost | None = None) -> None:
        trial_id, params = proposal.trial_id, proposal.params
        self.proposals[trial_id], self.costs[trial_id] = proposal, cost
        why = {"reason": proposal.reason.model_dump(mode="json"), "cost": cost}
        self._append("proposed", trial_id=trial_id, params=params, seed=seed, **why)

    def finished(self, record: TrialRecord) -> None:
        """Writes a trial's record; it must be the first of that trial."""
        assert record.trial_id not in self.records, f"{record.trial_id} finished twice"
        self.records.add(record)
        self._append("finished", record=record.model_dump(mode="json"))

    def take_over(self, record: TrialRecord) -> None:
        """Writes a trial that finished, of a ledger that was lost. Raises: StorageError."""
        try:
            _checked_id(record.trial_id)
        except ValueError as error:
            raise StorageError(
                f"a trial must be called t0000 or so, but got {record.trial_id!r}."
            ) from error
        self.proposed(_proposal_of(record), seed=record.runs[-1].seed)
        self.finished(record)

    def interrupted(self, trial_id: str, *, reason: StopReason) -> None:
        self._append("interrupted", trial_id=trial_id, reason=reason.model_dump(mode="json"))

    def ended(self, reason: StopReason) -> None:
        self._append("ended", reason=reason.model_dump(mode="json"))

    def steered(self, answer: Answer) -> None:
        """Writes what came of a person's request; what follows from it is done afterwards."""
        self._append("steered", **answer.event())
        self.answers[answer.request.id] = answer

    def timed(self, windows: Sequence[StepTime], step_times: Mapping[str, StepTime]) -> None:
        """Writes what is known of step times, and re-clocks records; no trial has `windows`."""
        told = {"windows": windows, "step_times": step_times.values()}
        fields = {name: [each.model_dump(mode="json") for each in told[name]] for name in told}
        self._append("timed", **fields)
        self.windows += windows
        self.records.reclock(step_times)

    def _replay(self, kind: str, event: dict[str, Any]) -> None:
        rules = (self.header or {}).get("protocol_version", PROTOCOL_VERSION)
        if kind == "study":
            if self.header not in (None, event) or (self.proposals and self.header is None):
                raise MisplacedEvent("a ledger must begin with its event `study` and have no other")
            self.header = event
        elif kind == "proposed":
            proposal, cost = _proposal(event), event.get("cost")
            if proposal.trial_id in self.unproposed:
                raise MisplacedEvent(
                    f"{proposal.trial_id} must be proposed before it finishes, but was afterwards"
                )
            self._log.is_new(f"what is tried as {proposal.trial_id}", event["params"])
            self.proposals[proposal.trial_id] = proposal
            self.costs[proposal.trial_id] = None if cost is None else Cost(*cost)
        elif kind == "warm_start":
            trials = tuple(prior_from_json(trial) for trial in event["trials"])
            self._log.is_new(f"what is known of {event['study']}", event["trials"])
            self.prior_trials[event["study"]] = trials
        elif kind == "steered":
            answer = Answer.model_validate(event)
            self._log.is_new(f"the answer to request {answer.request.id}", event)
            self.answers[answer.request.id] = answer
        elif kind == "timed":
            windows = tuple(map(StepTime.model_validate, event["windows"]))
            step_times = map(StepTime.model_validate, event["step_times"])
            self.windows += windows
            self.records.reclock({each.key: each for each in step_times})
        elif kind == "finished":
            self._replay_record(TrialRecord.model_validate(event["record"]), event["record"])
        # A later protocol may have other events: its ledger is refused when all of it was read.
        elif kind not in ("interrupted", "ended") and rules == PROTOCOL_VERSION:
            raise MisplacedEvent(f"tune_speed {__version__} has no event {kind!r}")

    def _replay_record(self, record: TrialRecord, said: Mapping[str, Any]) -> None:
        trial_id = _checked_id(record.trial_id)
        ours = (self.header or {}).get("study", record.study)
        if record.study != ours:
            raise MisplacedEvent(f"{trial_id} must be of study {ours}, but is of {record.study}")
        if not self._log.is_new(f"the record of {trial_id}", said):
            return
        if trial_id not in self.proposals:
            self.unproposed.add(trial_id)
            self.proposals[trial_id], self.costs[trial_id] = _proposal_of(record), None
        self.records.add(record)

    def _append(self, kind: str, /, **fields: Any) -> None:
        """Writes an event. Raises: StorageError, on a full disk after using the ballast for it."""
        event = {"event": kind, **fields}
        try:
            self._log.write(event)
        except OSError as error:
            if error.errno == errno.ENOSPC and self._ballast.exists():
                self._ballast.unlink()
                self._log.append(event)
            raise self._log.unwritable(error) from error


def _proposal(event: Mapping[str, Any]) -> Proposal:
    # JSON has the names anew in each line: a kB a trial. Ledgers of older versions have no reason.
    params = {sys.intern(name): value for name, value in dict(event["params"]).items()}
    reason = ProposalReason.model_validate(event.get("reason", ""))
    return Proposal(_checked_id(event["trial_id"]), params, reason)


def _proposal_of(record: TrialRecord) -> Proposal:
    return Proposal(record.trial_id, dict(record.params), record.proposal_reason)


def _checked_id(trial_id: str) -> str:
    # Files are named by it, so a ledger of a stranger must not choose their paths.
    if not _TRIAL_ID.fullmatch(trial_id):
        raise ValueError("no trial's id")
    return trial_id
