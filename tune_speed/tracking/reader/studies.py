"""The studies of a store at a glance, from their searches' own runs; step times on record."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from tune_speed.core.records import Status, StepTime
from tune_speed.tracking import schema, search_summary
from tune_speed.tracking.reader.queries import studies_in
from tune_speed.tracking.reader.tables import OF_THESE_STUDIES, Tables, batches, read_directly
from tune_speed.tracking.store.store import Store, runs_with


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


class _Search(NamedTuple):
    status: str
    metrics: Mapping[str, float]
    tags: Mapping[str, str]


class _Study(NamedTuple):
    """An experiment, and its searches, the latest first."""

    experiment_id: str
    name: str
    searches: list[_Search]


def list_studies(store: Store) -> list[StudySummary]:
    """Returns all studies, the latest active first, from one run a search. Raises: ServiceError."""
    found = read_directly(store, _from_tables)
    studies = list(map(_summarised, _from_mlflow(store) if found is None else found))
    studies.sort(key=lambda study: study.name)
    return sorted(studies, key=lambda study: study.last_activity, reverse=True)


def _from_mlflow(store: Store) -> list[_Study]:
    found = ((each.experiment_id, name) for name, each in studies_in(store).items())
    studies = {number: _Study(number, name, []) for number, name in found}
    for run in runs_with(store, list(studies), {schema.KIND: schema.SEARCH}):
        search = _Search(run.info.status, run.data.metrics, run.data.tags)
        studies[run.info.experiment_id].searches.append(search)
    return list(studies.values())


def _from_tables(tables: Tables) -> list[_Study]:
    studies = {number: _Study(str(number), name, []) for number, name in tables.query(_STUDIES)}
    values = {"id": schema.SEARCH_ID, "kind": schema.KIND, "search": schema.SEARCH}
    for some in batches(tables.query(_SEARCHES, values)):
        runs = [run_id for run_id, *_ in some]
        metrics = _by_run(tables.query(_METRICS, runs=runs))
        tags = _by_run(tables.query(_TAGS, runs=runs))
        for run_id, experiment, status in some:
            search = _Search(status, metrics.get(run_id, {}), tags.get(run_id, {}))
            studies[experiment].searches.append(search)
    return list(studies.values())


def _by_run(rows: Iterable[Sequence[Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for run_id, key, value in rows:
        found.setdefault(run_id, {})[key] = value
    return found


def _summarised(study: _Study) -> StudySummary:
    searches = study.searches
    counts = {
        status: int(
            sum(search.metrics.get(search_summary.count_key(status), 0.0) for search in searches)
        )
        for status in Status
    }
    timed = [search for search in searches if search_summary.BEST_TIME in search.metrics]
    best = min(timed, key=lambda search: search.metrics[search_summary.BEST_TIME], default=None)
    tags = {key: value for search in reversed(searches) for key, value in search.tags.items()}
    # A search's run names the devices that have trials in its boards alone.
    devices = {key.device for s in searches for key in schema.unpack_boards(s.tags) or ()}
    return StudySummary(
        name=study.name,
        experiment_id=study.experiment_id,
        workload=tags.get(schema.WORKLOAD, ""),
        device="; ".join(sorted(devices)),
        num_trials={status: count for status, count in counts.items() if count},
        best_time_s=best.metrics[search_summary.BEST_TIME] if best else None,
        best_trial=best.tags.get(schema.BEST_TRIAL) if best else None,
        last_activity=max((s.tags.get(schema.UPDATED_AT, "") for s in searches), default=""),
        is_running=any(search.status == "RUNNING" for search in searches),
    )


_STUDIES = "SELECT e.experiment_id, e.name FROM experiments e WHERE e.experiment_id IN ({studies})"
_SEARCHES = f"""
SELECT r.run_uuid, r.experiment_id, r.status
FROM tags t {{then}} runs r ON r.run_uuid = t.run_uuid
{{then}} tags kind ON kind.{{key}} = :kind AND kind.run_uuid = r.run_uuid
WHERE t.{{key}} = :id AND kind.value = :search AND {OF_THESE_STUDIES}
ORDER BY r.start_time DESC, r.run_uuid
"""
_METRICS = "SELECT m.run_uuid, m.{key}, m.value FROM latest_metrics m WHERE m.run_uuid IN ({runs})"
_TAGS = "SELECT t.run_uuid, t.{key}, t.value FROM tags t WHERE t.run_uuid IN ({runs})"

# The latest measurements that are read: what is older was mostly made with other versions.
MOST_RUNS = 1000

_STEP_TIMES = TypeAdapter(tuple[StepTime, ...])


def find_step_times(store: Store) -> tuple[StepTime, ...]:
    """Returns the windows on record of all studies, the oldest first. Raises: ServiceError."""
    # Of all studies: keys hold device and versions, so that none is used where it does not hold.
    ids = [each.experiment_id for each in studies_in(store).values()]
    measured = f"tags.`{schema.STEP_TIMES}` != ''"
    runs = runs_with(store, ids, {}, also=measured, order_by=("attributes.start_time DESC",))
    return tuple(each for run in reversed([*islice(runs, MOST_RUNS)]) for each in _read(run))


def _read(run: Any) -> tuple[StepTime, ...]:
    try:
        return _STEP_TIMES.validate_json(run.data.tags.get(schema.STEP_TIMES, "[]"))
    except ValidationError:
        # Of another version; it is measured again.
        return ()
