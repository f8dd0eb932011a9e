"""What MLflow has of one study, read again and again: a trial that has ended is read only once."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tune_speed.core.records import TrialRecord
from tune_speed.tracking import schema
from tune_speed.tracking.notes import Note, notes_of
from tune_speed.tracking.reader.queries import experiments_of
from tune_speed.tracking.reader.tables import Tables, TrackedTrial, batches, read_directly
from tune_speed.tracking.store.store import Store, runs_with

if TYPE_CHECKING:
    from mlflow import MlflowClient

# So far before the latest end a refresh looks back: the writer's clock may be adjusted meanwhile.
END_MARGIN_MS = 5_000
IS_SEARCH = f"tags.`{schema.SEARCH_ID}` LIKE '%'"
IS_RUNNING = "attributes.status = 'RUNNING'"
IS_KILLED, IS_NOT_KILLED = "attributes.status = 'KILLED'", "attributes.status != 'KILLED'"

_log = logging.getLogger(__name__)

TrialKey = tuple[str, str]
"""Run id of the search, and trial id."""


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """The run of a search as a whole."""

    run_id: str
    started_at: str
    """UTC, ISO 8601."""
    updated_at: str
    is_running: bool
    """Begun and not ended; a killed driver leaves it so until the study is resumed."""
    tags: Mapping[str, str]
    """Without the prefix: what the study file said of the search, versions, commit."""


@dataclass(frozen=True, kw_only=True)
class OpenTrial:
    """A trial without an outcome: it runs, or it was stopped."""

    run_id: str
    search_run_id: str
    trial_id: str
    started_at: str
    """UTC, ISO 8601."""
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    """The latest of each."""

    @property
    def key(self) -> TrialKey:
        """What stays the same when the trial runs again in another run."""
        return self.search_run_id, self.trial_id


class _Ended(NamedTuple):
    """A trial with an outcome."""

    run_id: str
    key: TrialKey
    end_ms: int
    record: TrialRecord | None
    """None: it cannot be read."""


class StudyPicture:
    """What MLflow had of a study at the last `refresh`."""

    def __init__(self, store: Store, study: str) -> None:
        """Finds the study, reads nothing of it. Raises: ServiceError, ConfigError without it."""
        self._store = store
        (self.experiment_id,) = experiments_of(store, study)
        self.searches: tuple[SearchRun, ...] = ()
        """In the order in which they began."""
        self.notes: dict[str, Note] = {}
        self.finished: dict[str, TrackedTrial] = {}
        """By run id."""
        self.running: tuple[OpenTrial, ...] = ()
        """In the order in which they began."""
        self._stopped: dict[TrialKey, OpenTrial] = {}
        self._done: set[TrialKey] = set()
        self._latest_end_ms = 0

    @property
    def interrupted(self) -> tuple[OpenTrial, ...]:
        """Trials that were stopped without an outcome, and neither ended nor run since."""
        gone_on = self._done | {trial.key for trial in self.running}
        return tuple(trial for key, trial in self._stopped.items() if key not in gone_on)

    def refresh(self) -> None:
        """Reads what is new; all or nothing. Raises: ServiceError or StorageError."""
        # In this order, so that a trial that ends meanwhile is seen, and that nothing is missing
        # once a search has ended (its own run ends last).
        self.notes = notes_of(self._store, self.experiment_id)
        searches = tuple(map(_search_run, self._runs(IS_SEARCH)))
        alive = list(self._runs(IS_RUNNING))
        # At its end a search corrects the times of trials that were read before.
        is_over = bool(_active(self.searches) - _active(searches))
        since_ms = 0 if is_over else max(0, self._latest_end_ms - END_MARGIN_MS)
        ended, killed = self._newly_over(alive, since_ms)
        self.searches = searches
        for each in ended:
            self._finish(each)
        self._take([run for run in (*killed, *alive) if schema.TRIAL_ID in run.data.tags])

    def history(self, run_id: str, x: str, y: str) -> list[tuple[float, float]]:
        """Returns two metrics at steps that have both. Raises: ServiceError, StorageError."""

        def read(client: "MlflowClient") -> list[dict[int, float]]:
            found = [client.get_metric_history(run_id, name) for name in (x, y)]
            return [{point.step: point.value for point in points} for points in found]

        xs, ys = self._store.call(read)
        return [(xs[step], ys[step]) for step in sorted(xs.keys() & ys.keys())]

    def _newly_over(self, alive: Sequence[Any], since_ms: int) -> tuple[list[_Ended], list[Any]]:
        ended, killed = self._over(since_ms)
        seen = {run.info.run_id for run in (*alive, *killed)} | {each.run_id for each in ended}
        lost = {trial.run_id for trial in self.running} - seen
        if lost:
            # They ran and are over, but not since then: the clock that says when was set back.
            ended, killed = self._over(0)
            ends_ms = [each.end_ms for each in ended if each.run_id in lost]
            self._latest_end_ms = max(ends_ms, default=self._latest_end_ms)
        return ended, killed

    def _over(self, since_ms: int) -> tuple[list[_Ended], list[Any]]:
        since = f"attributes.end_time > {since_ms}"
        # MLflow takes 8 ms and 100 kB for each run, and a search may have 20,000.
        ended = read_directly(self._store, lambda t: _ended_in(t, self.experiment_id, since_ms))
        if ended is None:
            runs = self._runs(f"{since} AND {IS_NOT_KILLED}")
            ended = [_ended_run(run) for run in runs if schema.RECORD in run.data.tags]
        return ended, list(self._runs(f"{since} AND {IS_KILLED}"))

    def _runs(self, condition: str) -> Iterator[Any]:
        order = ["attributes.start_time ASC"]
        return runs_with(self._store, [self.experiment_id], {}, also=condition, order_by=order)

    def _finish(self, trial: _Ended) -> None:
        if trial.run_id not in self.finished:
            self._latest_end_ms = max(self._latest_end_ms, trial.end_ms)
        if trial.record is not None:
            found = TrackedTrial(trial.run_id, self.experiment_id, trial.record)
            self.finished[trial.run_id] = found
        elif trial.key not in self._done:
            _log.warning("run %s is left out: its record cannot be read", trial.run_id)
        self._done.add(trial.key)

    def _take(self, runs: Sequence[Any]) -> None:
        active = _active(self.searches)
        running: dict[str, OpenTrial] = {}
        for run in runs:
            if schema.RECORD in run.data.tags:
                # All is there but its last status.
                self._finish(_ended_run(run))
                continue
            trial = OpenTrial(
                run_id=run.info.run_id,
                search_run_id=run.data.tags.get(schema.PARENT, ""),
                trial_id=run.data.tags[schema.TRIAL_ID],
                started_at=_iso(run.info.start_time),
                params=run.data.params,
                metrics=run.data.metrics,
            )
            if run.info.status == "RUNNING" and trial.search_run_id in active:
                running[trial.run_id] = trial
            else:
                self._stopped[trial.key] = trial
        self.running = tuple(each for each in running.values() if each.run_id not in self.finished)


_ENDED = """
SELECT r.run_uuid, parent.value, trial.value, r.end_time
FROM runs r
{then} tags trial ON trial.{key} = :trial_id AND trial.run_uuid = r.run_uuid
{then} tags record ON record.{key} = :record AND record.run_uuid = r.run_uuid
LEFT JOIN tags parent ON parent.{key} = :parent AND parent.run_uuid = r.run_uuid
WHERE r.experiment_id = :experiment AND r.lifecycle_stage = 'active'
AND r.end_time > :since_ms AND r.status <> 'KILLED'
ORDER BY r.start_time
"""


def _ended_in(tables: Tables, experiment_id: str, since_ms: int) -> list[_Ended]:
    values: dict[str, Any] = {"experiment": int(experiment_id), "since_ms": since_ms}
    values |= {"trial_id": schema.TRIAL_ID, "record": schema.RECORD, "parent": schema.PARENT}
    found = []
    for some in batches(tables.query(_ENDED, values)):
        texts = tables.texts(schema.RECORD, [run_id for run_id, *_ in some])
        for run_id, parent_id, trial_id, end_ms in some:
            record = schema.unpack_record(texts[run_id])
            found.append(_Ended(run_id, (parent_id or "", trial_id), end_ms, record))
    return found


def _ended_run(run: Any) -> _Ended:
    tags = run.data.tags
    key = (tags.get(schema.PARENT, ""), tags[schema.TRIAL_ID])
    return _Ended(run.info.run_id, key, run.info.end_time or 0, schema.unpack_record(tags))


def _search_run(run: Any) -> SearchRun:
    written, started_at = run.data.tags.items(), _iso(run.info.start_time)
    tags = {k.removeprefix(schema.PREFIX): v for k, v in written if k.startswith(schema.PREFIX)}
    return SearchRun(
        run_id=run.info.run_id,
        started_at=started_at,
        updated_at=tags.get("updated_at", started_at),
        is_running=run.info.status == "RUNNING",
        tags=tags,
    )


def _active(searches: Iterable[SearchRun]) -> set[str]:
    return {search.run_id for search in searches if search.is_running}


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
