"""The studies of a store at a glance, from their searches' own runs; step times on record."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from tune_speed.core.records import Status, StepTime, TrialRecord
from tune_speed.tracking import schema, search_summary
from tune_speed.tracking.reader.tables import OF_THESE_STUDIES, Tables, batches, read_directly
from tune_speed.tracking.store.store import Store, runs_with

OLDEST_FIRST = ("attributes.start_time ASC",)
# Parent runs alone have the tag: to find its key takes no look at the trials.
IS_SEARCH = f"tags.`{schema.SEARCH_ID}` LIKE '%'"


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """A study at a glance."""

    name: str
    experiment_id: str
    workload: str
    """Name of the workload; empty if the study never said."""
    device: str
    """Name of the device, several joined by `; `; empty if no trial has finished."""
    num_trials: dict[Status, int]
    """Finished trials by status; statuses that none has are left out."""
    best_time_s: float | None
    """Least time to target [s]; None if no trial met the target."""
    best_trial: str | None
    last_activity: str
    """UTC, ISO 8601; empty if no trial has finished."""
    is_running: bool
    """Whether a search has begun and not ended; a killed driver leaves it so until resumed."""


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """The run of a search as a whole, or of a certification."""

    run_id: str
    experiment_id: str = ""
    started_at: str
    """UTC, ISO 8601."""
    updated_at: str
    is_running: bool
    """Begun and not ended; a killed driver leaves it so until the study is resumed."""
    tags: Mapping[str, str]
    """Without the prefix: what the study file said of the search, versions, commit."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def stored(self) -> dict[str, str]:
        """The tags as MLflow has them."""
        return {f"{schema.PREFIX}{key}": value for key, value in self.tags.items()}


def list_studies(store: Store) -> list[StudySummary]:
    """Returns all studies, the latest active first, from one run a search. Raises: ServiceError."""

    def read(tables: Tables) -> tuple[dict[str, str], list[SearchRun]]:
        return {str(of): name for of, name in tables.query(_STUDIES)}, searches_in(tables, None)

    found = read_directly(store, read)
    if found is None:
        names = {each.experiment_id: name for name, each in store.studies().items()}
        found = names, searches_by_mlflow(store, list(names))
    names, every = found
    searches: dict[str, list[SearchRun]] = {experiment_id: [] for experiment_id in names}
    for each in every:
        # A search may have begun between the two queries, in an experiment of its own.
        if each.tags.get("kind") == schema.SEARCH and each.experiment_id in searches:
            searches[each.experiment_id].append(each)
    studies = [_summarised(name, of, searches[of]) for of, name in names.items()]
    studies.sort(key=lambda study: study.name)
    return sorted(studies, key=lambda study: study.last_activity, reverse=True)


def searches_by_mlflow(store: Store, experiments: Sequence[str]) -> list[SearchRun]:
    """Returns what `searches_in` does, by MLflow's client. Raises: ServiceError, StorageError."""
    return [
        search_run(
            (run.info.run_id, run.info.experiment_id, run.info.start_time, run.info.status),
            run.data.tags,
            run.data.metrics,
        )
        for run in runs_with(store, experiments, {}, also=IS_SEARCH, order_by=OLDEST_FIRST)
    ]


def searches_in(tables: Tables, study: str | None) -> list[SearchRun]:
    """Returns the parent runs of a study, or all, in the order in which they began."""
    found: list[SearchRun] = []
    for some in batches(tables.query(_SEARCHES, {"id": schema.SEARCH_ID}, study=study)):
        runs = [run_id for run_id, *_ in some]
        metrics = _by_run(tables.query(_METRICS, runs=runs))
        tags = _by_run(tables.query(_TAGS, runs=runs))
        found += [search_run(row, tags.get(row[0], {}), metrics.get(row[0], {})) for row in some]
    return found


def search_run(
    row: Sequence[Any], tags: Mapping[str, str], metrics: Mapping[str, float]
) -> SearchRun:
    run_id, experiment_id, start_ms, status = row
    started_at, size = iso(start_ms or 0), len(schema.PREFIX)
    own = {key[size:]: tag for key, tag in tags.items() if key.startswith(schema.PREFIX)}
    return SearchRun(
        run_id=run_id,
        experiment_id=str(experiment_id),
        started_at=started_at,
        updated_at=own.get("updated_at", started_at),
        is_running=status == "RUNNING",
        tags=own,
        metrics=metrics,
    )


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _by_run(rows: Iterable[Sequence[Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for run_id, key, value in rows:
        found.setdefault(run_id, {})[key] = value
    return found


def _summarised(name: str, experiment_id: str, searches: list[SearchRun]) -> StudySummary:
    counts = {
        status: int(
            sum(search.metrics.get(search_summary.count_key(status), 0.0) for search in searches)
        )
        for status in Status
    }
    timed = [each for each in reversed(searches) if search_summary.BEST_TIME in each.metrics]
    best = min(timed, key=lambda search: search.metrics[search_summary.BEST_TIME], default=None)
    tags = {key: value for search in searches for key, value in search.stored.items()}
    # A search's run names the devices that have trials in its boards alone.
    devices = {key.device for s in searches for key in schema.unpack_boards(s.stored) or ()}
    return StudySummary(
        name=name,
        experiment_id=experiment_id,
        workload=tags.get(schema.WORKLOAD, ""),
        device="; ".join(sorted(devices)),
        num_trials={status: count for status, count in counts.items() if count},
        best_time_s=best.metrics[search_summary.BEST_TIME] if best else None,
        best_trial=best.stored.get(schema.BEST_TRIAL) if best else None,
        last_activity=max((s.stored.get(schema.UPDATED_AT, "") for s in searches), default=""),
        is_running=any(search.is_running for search in searches),
    )


_STUDIES = "SELECT e.experiment_id, e.name FROM experiments e WHERE e.experiment_id IN ({studies})"
_SEARCHES = f"""
SELECT r.run_uuid, r.experiment_id, r.start_time, r.status
FROM tags t {{then}} runs r ON r.run_uuid = t.run_uuid
WHERE t.{{key}} = :id AND {OF_THESE_STUDIES}
ORDER BY r.start_time, r.run_uuid
"""
_METRICS = "SELECT m.run_uuid, m.{key}, m.value FROM latest_metrics m WHERE m.run_uuid IN ({runs})"
_TAGS = "SELECT t.run_uuid, t.{key}, t.value FROM tags t WHERE t.run_uuid IN ({runs})"


class Ended(NamedTuple):
    """A trial with an outcome."""

    run_id: str
    key: tuple[str, str]
    """Run id of the search, and trial id."""
    end_ms: int
    record: TrialRecord | None
    """None: it cannot be read."""


def ended_since(store: Store, experiment_id: str, since_ms: int) -> list[Ended]:
    """Returns a study's trials with an outcome since then [ms since 1970]. Raises: ServiceError."""
    # MLflow takes 8 ms and 100 kB for each run, and a search may have 20,000.
    found = read_directly(store, lambda tables: _ended_in(tables, experiment_id, since_ms))
    if found is not None:
        return found
    also = f"attributes.end_time > {since_ms} AND attributes.status != 'KILLED'"
    runs = runs_with(store, [experiment_id], {}, also=also, order_by=OLDEST_FIRST)
    return [ended_run(run) for run in runs if schema.RECORD in run.data.tags]


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


def _ended_in(tables: Tables, experiment_id: str, since_ms: int) -> list[Ended]:
    values: dict[str, Any] = {"experiment": int(experiment_id), "since_ms": since_ms}
    values |= {"trial_id": schema.TRIAL_ID, "record": schema.RECORD, "parent": schema.PARENT}
    found = []
    for some in batches(tables.query(_ENDED, values)):
        texts = tables.texts(schema.RECORD, [run_id for run_id, *_ in some])
        for run_id, parent_id, trial_id, end_ms in some:
            record = schema.unpack_record(texts[run_id])
            found.append(Ended(run_id, (parent_id or "", trial_id), end_ms, record))
    return found


def ended_run(run: Any) -> Ended:
    tags = run.data.tags
    key = (tags.get(schema.PARENT, ""), tags[schema.TRIAL_ID])
    return Ended(run.info.run_id, key, run.info.end_time or 0, schema.unpack_record(tags))


# The latest measurements that are read: what is older was mostly made with other versions.
MOST_RUNS = 1000

_STEP_TIMES = TypeAdapter(tuple[StepTime, ...])


def find_step_times(store: Store) -> tuple[StepTime, ...]:
    """Returns the windows on record of all studies, the oldest first. Raises: ServiceError."""
    # Of all studies: keys hold device and versions, so that none is used where it does not hold.
    ids = [each.experiment_id for each in store.studies().values()]
    measured = f"tags.`{schema.STEP_TIMES}` != ''"
    runs = runs_with(store, ids, {}, also=measured, order_by=("attributes.start_time DESC",))
    return tuple(each for run in reversed([*islice(runs, MOST_RUNS)]) for each in _read(run))


def _read(run: Any) -> tuple[StepTime, ...]:
    try:
        return _STEP_TIMES.validate_json(run.data.tags.get(schema.STEP_TIMES, "[]"))
    except ValidationError:
        # Of another version; it is measured again.
        return ()
