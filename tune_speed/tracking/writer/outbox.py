"""What is still to be delivered about one trial, and how it is delivered."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tune_speed.core.records import Evaluation, Status, TrialRecord
from tune_speed.tracking import schema
from tune_speed.tracking.schema import mark
from tune_speed.tracking.writer import descriptions
from tune_speed.tracking.writer.runs import Key, RunRef, StudyRuns

_PERMANENT_CODES = (
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_STATE",
)
_PERMANENT_OS_ERRORS = (PermissionError, NotADirectoryError, FileExistsError)
# Logins may be renewed and servers relieved; any other 4xx stays as it is.
_PASSING_HTTP_STATUSES = (401, 403, 408, 425, 429)


@dataclass
class Outbox:
    """One attempt at one trial."""

    key: Key
    start_ms: int
    params: dict[str, str] | None
    """As proposed; None: as the record says."""
    searched: tuple[str, ...] = ()
    is_new: bool = False
    """Whether the trial was started in this session; if not, a run of it has the last word on what
    was proposed."""
    evaluations: list[Evaluation] = field(default_factory=list)
    load: Callable[[], TrialRecord] | None = None
    """Returns the record of a trial that has one: kept where it takes the least memory."""
    reclocked_ms: int | None = None
    """When a record that is delivered got other times [ms since 1970]; None: it did not."""
    interrupted: str | None = None
    ref: RunRef | None = None
    delivered: set[str] = field(default_factory=set)

    @property
    def has_ended(self) -> bool:
        return self.load is not None or self.interrupted is not None

    def take(self, record: TrialRecord, load: Callable[[], TrialRecord] | None = None) -> None:
        """Ends the attempt; `load` returns the record once more, without it is kept here."""
        self.load, self.interrupted = load or (lambda: record), None
        on_record = {mark(each) for run in record.runs for each in run.evaluations}
        self.evaluations = [each for each in self.evaluations if mark(each) not in on_record]
        if self.ref is None and self.params == schema.param_entries(record.recipe, record.params):
            self.params = None

    @property
    def is_due(self) -> bool:
        return self.has_ended or self.ref is None or bool(self.evaluations)


def deliver(outbox: Outbox, runs: StudyRuns) -> str | None:
    """Delivers all that an outbox holds; returns why files are missing. May be repeated."""
    record = outbox.load() if outbox.load is not None else None
    if outbox.reclocked_ms is not None and record is not None:
        return _write_clock(outbox, record, runs)
    if outbox.params is None:
        assert record is not None
        outbox.params = schema.param_entries(record.recipe, record.params)
    required = outbox.params if outbox.is_new else {}
    ref = outbox.ref or runs.begin(outbox.key, params=required, start_ms=outbox.start_ms)
    # Files first, the status last: so a run with a record has its files.
    refused = _write_files(record, ref, runs) if record is not None else None
    _write_values(outbox, record, ref, runs)
    if record is not None:
        # A miss is a finished measurement: only an error failed.
        runs.end(ref, "FAILED" if record.status is Status.FAILED else "FINISHED")
    elif outbox.interrupted is not None:
        runs.end(ref, "KILLED")
    return refused


def _write_clock(outbox: Outbox, record: TrialRecord, runs: StudyRuns) -> str | None:
    ref = runs.known()[outbox.key]
    refused = _write_files(record, ref, runs)
    # MLflow's latest of a metric is that of the latest moment at one step, not what came last.
    points = schema.final_points(record, start_ms=ref.start_ms)
    moved = [point._replace(timestamp_ms=outbox.reclocked_ms or 0) for point in points]
    note = {descriptions.NOTE: descriptions.trial_note(record, run_id=ref.run_id)}
    runs.write(ref, points=moved, tags=schema.record_tags(record) | note)
    runs.end(ref, ref.status)
    ref.clock = schema.clock_of(record)
    return refused


def is_permanent(error: Exception) -> bool:
    """Whether trying again would give the same error: it is about one trial, not the store."""
    if _has_lost_database(error):
        return False
    code = getattr(error, "error_code", None)
    if code is not None:
        return code in _PERMANENT_CODES
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return 400 <= status < 500 and status not in _PASSING_HTTP_STATUSES
    return isinstance(error, _PERMANENT_OS_ERRORS) or not isinstance(error, OSError)


def _has_lost_database(error: BaseException | None) -> bool:
    # MLflow passes such errors on as they are or as bad requests, depending on the statement that
    # met them.
    from sqlalchemy import exc

    while error is not None:
        if isinstance(error, exc.OperationalError | exc.InterfaceError | exc.PendingRollbackError):
            return True
        if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
            return True
        error = error.__cause__ or error.__context__
    return False


def _write_files(record: TrialRecord, ref: RunRef, runs: StudyRuns) -> str | None:
    try:
        runs.write_files(ref, schema.artifact_files(record))
    except Exception as error:
        if not is_permanent(error):
            raise
        return f"its files could not be stored ({type(error).__name__}: {error})"
    return None


def _write_values(outbox: Outbox, record: TrialRecord | None, ref: RunRef, runs: StudyRuns) -> None:
    evaluations, start_ms = tuple(outbox.evaluations), ref.start_ms
    points = [p for e in evaluations for p in schema.curve_points(e, start_ms=start_ms)]
    known = ref.params or {}
    params = {key: known.get(key, value) for key, value in (outbox.params or {}).items()}
    if record is not None:
        points += schema.record_points(
            record, start_ms=start_ms, without=outbox.delivered | set(map(mark, evaluations))
        )
        params |= schema.ran_entries(record.recipe, params)
    missing = {key: value for key, value in params.items() if key not in known}
    runs.write(ref, points=points, params=missing, tags=_tags(outbox, record, ref))
    ref.params = {**known, **missing}
    outbox.ref = ref
    outbox.delivered |= set(map(mark, evaluations))
    del outbox.evaluations[: len(evaluations)]


def _tags(outbox: Outbox, record: TrialRecord | None, ref: RunRef) -> dict[str, str]:
    kind, trial_id = outbox.key
    tags = {}
    if outbox.ref is None:
        tags = schema.start_tags(trial_id, kind=kind) | schema.searched_tag(outbox.searched)
    if record is not None:
        tags |= schema.record_tags(record)
        tags[descriptions.NOTE] = descriptions.trial_note(record, run_id=ref.run_id)
    elif outbox.interrupted is not None:
        tags |= schema.interrupted_tags(outbox.interrupted)
        tags[descriptions.NOTE] = descriptions.interrupted_note(outbox.interrupted)
    return tags
