"""What ended or changed in a store since its index was fed last: by SQL, or by MLflow's client."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.tracking import schema
from tune_speed.tracking.reader.tables import (
    OF_THESE_STUDIES,
    Tables,
    TrackedTrial,
    batches,
    read_directly,
)
from tune_speed.tracking.record_index import Known, RecordIndex, Run, Sums, index_of
from tune_speed.tracking.store.store import Store, runs_with

HAS_RECORD = f"tags.`{schema.RECORD}` != ''"
IS_TRIAL = f"tags.`{schema.TRIAL_ID}` LIKE '%'"
# Parent runs alone have the tag: to find its key takes no look at the trials.
IS_SEARCH = f"tags.`{schema.SEARCH_ID}` LIKE '%'"
OLDEST_FIRST = ("attributes.start_time ASC",)
NUM_SUGGESTIONS = 5
INTERRUPTED = "interrupted"
"""Status of a trial that ended without a record."""
# So far before the latest end is asked again: a writer's clock may be adjusted meanwhile.
MARGIN_MS = 5_000

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


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

    @property
    def stored(self) -> dict[str, str]:
        """The tags as MLflow has them."""
        return {f"{schema.PREFIX}{key}": value for key, value in self.tags.items()}


@dataclass(frozen=True)
class Seen:
    """What is read of a store each time."""

    studies: dict[str, str]
    """Names of those that were asked for, by the id of their experiment."""
    searches: list[SearchRun]
    """Their searches' own runs, and those of certifications, in the order in which they began."""


def ask(store: Store, study: str | None, read: Callable[[RecordIndex, Seen], Result]) -> Result:
    """Returns what `read` makes of the store's index, once that has what is new of a study, or all.

    Raises: ServiceError if the store does not answer; ConfigError if it has no such study.
    """
    return index_of(store).used(lambda index: read(index, _feed(store, study, index)))


def tracked(index: RecordIndex, runs: Iterable[Sequence[Any]]) -> Iterator[TrackedTrial]:
    """Yields the trials of these run and experiment ids in order; logs what cannot be read."""
    for some in batches(runs):
        run_ids = [run_id for run_id, *_ in some]
        texts = index.texts(run_ids)
        if missing := [run_id for run_id in run_ids if run_id not in texts]:
            texts |= _texts_of(index.store, missing)
        for run_id, experiment_id, *_ in some:
            record = schema.unpack_record({schema.RECORD: texts.get(run_id, "")})
            if record is None:
                _log.warning("run %s is left out: its record cannot be read", run_id)
                continue
            yield TrackedTrial(run_id, experiment_id, record)


def _feed(store: Store, study: str | None, index: RecordIndex) -> Seen:
    found = read_directly(store, partial(_by_tables, study=study, index=index))
    if found is not None:
        return found
    if study is not None:
        return _by_mlflow(store, dict.fromkeys(experiments_of(store, study), study), index)
    names = {str(each.experiment_id): name for name, each in store.studies().items()}
    return _by_mlflow(store, names, index)


def _texts_of(store: Store, run_ids: Sequence[str]) -> dict[str, str]:
    found = read_directly(store, lambda tables: tables.texts(schema.RECORD, run_ids))
    if found is None:
        ask = partial(map, store.client.get_run)
        found = {run.info.run_id: run.data.tags for run in store.call(lambda _: [*ask(run_ids)])}
    return {run_id: schema.record_text(tags) for run_id, tags in found.items()}


def _by_tables(tables: Tables, *, study: str | None, index: RecordIndex) -> Seen | None:
    names = {str(of): name for of, name in tables.query(_STUDIES, study=study)}
    if study is not None and not names:
        # MLflow's client finds out what is wrong.
        return None
    # Searches first: a search that has ended has all of its trials.
    seen = Seen(names, _searches_in(tables, study))
    record = {"record": schema.RECORD}
    ((*sums,),) = tables.query(f"SELECT {_SUMS} {_ENDED}", record, study=study)
    if Sums(*(int(each or 0) for each in sums)) != index.sums(names):
        rows = list(tables.query(f"SELECT {_STATE} {_ENDED}", record, study=study))
        known = index.known(names)
        index.take((), known.keys() - {run_id for run_id, *_ in rows})
        for some in batches(row for row in rows if _is_new(known, row[0], row[3], row[4])):
            index.take(list(_with_facts(tables, some)))
    return seen


def _is_new(known: Mapping[str, Known], run_id: str, end_ms: int | None, is_deleted: bool) -> bool:
    return run_id not in known or known[run_id][:2] != (end_ms or 0, bool(is_deleted))


def _with_facts(tables: Tables, rows: Sequence[Sequence[Any]]) -> Iterator[Run]:
    tags: dict[str, dict[str, str]] = {run_id: {} for run_id, *_ in rows}
    names = dict(parent=schema.PARENT, trial=schema.TRIAL_ID, kind=schema.KIND, facts=schema.FACTS)
    for run_id, key, value in tables.query(_TAGS, names, runs=list(tags)):
        tags[run_id][key] = value
    # Older versions wrote no facts: they follow from the record.
    without = [run_id for run_id, own in tags.items() if schema.FACTS not in own]
    records = tables.texts(schema.RECORD, without)
    for row in rows:
        yield _run_of(row, {**tags[row[0]], **records.get(row[0], {})})


def _run_of(row: Sequence[Any], tags: Mapping[str, str], *, text: str = "") -> Run:
    run_id, experiment_id, start_ms, end_ms, is_deleted = row
    facts: Sequence[Any] | None = schema.unpack_facts(tags)
    record = schema.unpack_record(tags) if facts is None and schema.RECORD in tags else None
    if record is not None:
        facts = schema.facts_of(record)
    if facts is None:
        bare = {"trial_id": tags.get(schema.TRIAL_ID), "kind": tags.get(schema.KIND)}
        bare["status"] = "unreadable" if schema.RECORD in tags else INTERRUPTED
        facts = [bare.get(name) for name in schema.Facts._fields]
    times = (start_ms or 0, end_ms or 0)
    parent = tags.get(schema.PARENT, "")
    return Run(run_id, str(experiment_id), parent, *times, bool(is_deleted), facts, text)


def _searches_in(tables: Tables, study: str | None) -> list[SearchRun]:
    found: list[SearchRun] = []
    for some in batches(tables.query(_SEARCHES, {"id": schema.SEARCH_ID}, study=study)):
        tags: dict[str, dict[str, str]] = {run_id: {} for run_id, *_ in some}
        for run_id, key, value in tables.query(_ALL_TAGS, runs=list(tags)):
            tags[run_id][key] = value
        found += [search_run(row, tags[row[0]]) for row in some]
    return found


def search_run(row: Sequence[Any], tags: Mapping[str, str]) -> SearchRun:
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
    )


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


_STUDIES = "SELECT e.experiment_id, e.name FROM experiments e WHERE e.experiment_id IN ({studies})"
_SEARCHES = f"""
SELECT r.run_uuid, r.experiment_id, r.start_time, r.status
FROM tags t {{then}} runs r ON r.run_uuid = t.run_uuid
WHERE t.{{key}} = :id AND {OF_THESE_STUDIES}
ORDER BY r.start_time, r.run_uuid
"""
_ALL_TAGS = "SELECT t.run_uuid, t.{key}, t.value FROM tags t WHERE t.run_uuid IN ({runs})"
_STATE = "r.run_uuid, r.experiment_id, r.start_time, r.end_time, r.lifecycle_stage <> 'active'"
_SUMS = """
COUNT(*), SUM(r.end_time), SUM(CASE WHEN r.lifecycle_stage <> 'active' THEN 1 ELSE 0 END)
"""
_ENDED = """
FROM runs r {as_they_lie}
WHERE r.experiment_id IN ({studies}) AND (r.status <> 'RUNNING' OR EXISTS (
    SELECT 1 FROM tags t WHERE t.{key} = :record AND t.run_uuid = r.run_uuid
))
"""
_TAGS = """
SELECT t.run_uuid, t.{key}, t.value FROM tags t
WHERE t.{key} IN (:parent, :trial, :kind, :facts) AND t.run_uuid IN ({runs})
"""


def _by_mlflow(store: Store, names: dict[str, str], index: RecordIndex) -> Seen:
    known = index.known(names)
    searches = list(runs_with(store, list(names), {}, also=IS_SEARCH, order_by=OLDEST_FIRST))
    since, stamps = _since(searches, index)
    for since_ms in sorted(set(since.values())):
        some = [experiment for experiment, of in since.items() if of == since_ms]
        _take(index, known, _runs(store, some, f"attributes.end_time > {since_ms} AND {IS_TRIAL}"))
        _take(index, known, _runs(store, some, f"attributes.status = 'RUNNING' AND {HAS_RECORD}"))
    trash = {run.run_id: run for run in _runs(store, list(names), "", deleted=True)}
    _take(index, known, trash.values())
    there = {search.info.run_id for search in searches} | trash.keys()
    # A run is never lost alone: another store is there, or an older copy of this one.
    gone = {run_id for run_id, state in known.items() if state.parent_id not in there}
    index.take((), gone)
    restored = {run_id for run_id, state in known.items() if state.is_deleted} - trash.keys()
    for ids in batches(sorted(restored - gone)):
        among = ", ".join(f"'{run_id}'" for run_id in ids)
        _take(index, known, _runs(store, list(names), f"attributes.run_id IN ({among})"))
    index.stamp(stamps)
    return Seen(names, list(map(_search_of, searches)))


def _take(index: RecordIndex, known: Mapping[str, Known], runs: Iterable[Run]) -> None:
    # A part at a time: a first reading that breaks off goes on from there.
    for some in batches(r for r in runs if _is_new(known, r.run_id, r.end_ms, r.is_deleted)):
        index.take(some)


def _search_of(run: Any) -> SearchRun:
    info = run.info
    return search_run(
        (info.run_id, info.experiment_id, info.start_time, info.status), run.data.tags
    )


def _since(searches: Sequence[Any], index: RecordIndex) -> tuple[dict[str, int], dict[str, str]]:
    """Returns since when [ms] each experiment is asked, but for those where nothing happened.

    Then the states of the searches that have others than in the index.
    """
    stamps, latest_ms = index.stamps(), index.latest_ms()
    since: dict[str, int] = {}
    new: dict[str, str] = {}
    for search in searches:
        info, metrics = search.info, search.data.metrics
        stamp = f"{info.status} {info.end_time} {sorted(metrics.items())}"
        is_running = info.status == "RUNNING"
        if stamps.get(info.run_id) == stamp and not is_running:
            continue
        new[info.run_id] = stamp
        # At its end a search corrects the times of trials that were read before.
        is_corrected = not is_running and info.run_id in stamps
        own_ms = 0 if is_corrected else latest_ms.get(info.experiment_id, 0) - MARGIN_MS
        since[info.experiment_id] = max(0, min(own_ms, since.get(info.experiment_id, own_ms)))
    return since, new


def _runs(
    store: Store, experiments: Sequence[str], also: str, *, deleted: bool = False
) -> Iterator[Run]:
    how: Any = {"order_by": ["attributes.end_time ASC"], "deleted": deleted}
    for run in runs_with(store, experiments, {}, also=also, **how):
        info, tags = run.info, run.data.tags
        row = (info.run_id, info.experiment_id, info.start_time, info.end_time, deleted)
        yield _run_of(row, tags, text=schema.record_text(tags))


def experiments_of(store: Store, study: str | None) -> list[str]:
    """Returns the ids of a study's experiment, or all. Raises: ConfigError, ServiceError."""
    if study is not None:
        found = store.call(lambda client: client.get_experiment_by_name(study))
        store.refuse_deleted(found)
        if found is not None:
            return [found.experiment_id]
    studies = store.studies()
    if not studies:
        from mlflow.entities import ViewType

        for deleted in store.studies(view_type=ViewType.DELETED_ONLY).values():
            store.refuse_deleted(deleted)
        raise ServiceError(
            f"there is no study in {store} yet. Run `tune-speed search digits_quickstart` first, or"
            " name another store with MLFLOW_TRACKING_URI."
        )
    if study is None:
        return [each.experiment_id for each in studies.values()]
    if study in studies:  # A search made it between the two queries.
        return [studies[study].experiment_id]
    near, shown = did_you_mean(study, studies), list(map(repr, studies))
    rest = f" and {len(shown) - NUM_SUGGESTIONS} more" if len(shown) > NUM_SUGGESTIONS else ""
    raise ConfigError(
        f"there is no study {study!r} in {store}{near or '.'} It holds"
        f" {', '.join(shown[:NUM_SUGGESTIONS])}{rest}; `tune-speed list studies` lists all."
    )
