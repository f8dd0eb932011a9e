"""Reads trials back, from any process, while a study is written or after it.

A record comes from a trial's tags; its curves lie in an artifact (`with_curves`).
"""

import logging
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from tune_speed.core.comparability import ComparisonKey, board_key
from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.text import recorded_device
from tune_speed.runtime.file_lock import TemporaryFolder
from tune_speed.tracking import schema
from tune_speed.tracking.filter.where import Pushed, Where, in_mlflow
from tune_speed.tracking.reader.tables import (
    OF_THESE_STUDIES,
    Row,
    Tables,
    TrackedTrial,
    read_directly,
)
from tune_speed.tracking.search_summary import NUM_TRIALS
from tune_speed.tracking.store.store import PAGE, Store, runs_with, tag_contains

HAS_RECORD = f"tags.`{schema.RECORD}` != ''"
TIME_TO_TARGET = "time_to_target_s"
FASTEST_FIRST = (f"metrics.{TIME_TO_TARGET} ASC", "attributes.start_time ASC")
MIN_RUN_ID_PREFIX = 6
NUM_SUGGESTIONS = 5
# Trials in which a filter's field is looked for before it counts as a mistake in writing.
NUM_CHECKED = 1000
CURVE_THREADS = 4

_RUN_ID = re.compile(rf"[0-9a-f]{{{MIN_RUN_ID_PREFIX},32}}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Query:
    """Which trials of a store are wanted; None: any."""

    study: str | None = None
    workload: str | None = None
    device: str | None = None
    """Part of the device's name, in whatever case."""
    kind: str | None = None
    where: Where | None = None
    only_reached: bool = False
    limit: int | None = None
    """The first so many, before `where` is asked."""

    @property
    def tags(self) -> tuple[Pushed, ...]:
        """Conditions on tags that all hold for every trial that is wanted."""
        wanted = {schema.WORKLOAD: self.workload, schema.KIND: self.kind}
        wanted[schema.STATUS] = Status.REACHED.value if self.only_reached else None
        own = [Pushed(name, "=", value) for name, value in wanted.items() if value is not None]
        return (*own, *(self.where.pushed() if self.where else ()))

    def is_on(self, name: object) -> bool:
        """Whether the name of a device contains `device`."""
        part = "" if self.device is None else recorded_device(self.device)
        return part.casefold() in str(name).casefold()

    def takes(self, key: ComparisonKey) -> bool:
        """Whether a board is of the workload, device and kind."""
        of_workload = self.workload in (None, key.workload)
        return self.is_on(key.device) and of_workload and self.kind in (None, key.kind)


ANY = Query()


def find_trials(
    store: Store, query: Query = ANY, *, with_curve: bool = False
) -> list[TrackedTrial]:
    """Returns the finished trials that fit, the fastest first and misses last.

    Raises: ServiceError if the store does not answer; ConfigError if it does not hold the study,
        or the filter names a field that no trial has.
    """

    def read(tables: Tables) -> list[TrackedTrial] | None:
        # Without the study, reading through MLflow reports what is wrong.
        return matching(partial(by_tables, tables), query) if tables.holds(query.study) else None

    found = read_directly(store, read)
    if found is None:
        found = matching(partial(by_mlflow, store), query)
    return list(with_curves(store, found)) if with_curve else found


def by_board(trials: Iterable[TrackedTrial]) -> list[TrackedTrial]:
    return sorted(trials, key=lambda trial: board_key(trial.record))


def matching(find: Callable[[Query], Iterator[TrackedTrial]], query: Query) -> list[TrackedTrial]:
    """Returns the trials that fit, in order, by what `find` answers."""
    where, trials = query.where, find(query)
    if where is None:
        return list(trials)
    head: list[TrackedTrial] = []

    def to_check() -> Iterator[TrialRecord]:
        """Yields the records found; then, where a field is still unknown, what was left out."""
        for trial in trials:
            head.append(trial)
            yield trial.record
        if where.pushed() or query.only_reached:
            left_out = replace(query, where=None, only_reached=False, limit=NUM_CHECKED)
            yield from (trial.record for trial in find(left_out))

    where.check(to_check())
    return [trial for trial in chain(head, trials) if where.matches(trial.record)]


def by_mlflow(store: Store, query: Query) -> Iterator[TrackedTrial]:
    """Yields what MLflow finds, in its order; `where` may hold for fewer."""
    tags = {each.tag: each.value for each in replace(query, where=None).tags}
    pushed = in_mlflow(query.where.pushed() if query.where else ())
    on_device = ""
    if query.device is not None:
        on_device = tag_contains(schema.DEVICE, recorded_device(query.device))
    runs = runs_with(
        store,
        experiments_of(store, query.study),
        tags,
        order_by=FASTEST_FIRST,
        also=" AND ".join(filter(None, (HAS_RECORD, on_device, pushed))),
        page_size=PAGE if query.limit is None else max(1, min(query.limit, PAGE)),
    )
    yield from islice((t for t in tracked(runs) if query.is_on(t.record.device)), query.limit)


def by_tables(tables: Tables, query: Query) -> Iterator[TrackedTrial]:
    """Yields what the tables hold, in the order that MLflow gives; `where` may hold for fewer."""

    def fastest_first(row: Row) -> tuple[float, float, str]:
        time_s, start_ms = (math.inf if value is None else value for value in row[2:])
        return time_s, start_ms, row[0]

    joins, values = "", dict(record=schema.RECORD, time=TIME_TO_TARGET)
    for i, each in enumerate(query.tags):
        # The same in SQL.
        assert each.sign in ("=", "!="), each
        joins += (
            f"{{then}} tags c{i} ON c{i}.{{key}} = :name_{i}"
            f" AND c{i}.run_uuid = r.run_uuid AND c{i}.value {each.sign} :value_{i}\n"
        )
        values |= {f"name_{i}": each.tag, f"value_{i}": each.value}
    rows = tables.query(_TRIALS.replace("{joins}", joins), values, study=query.study)
    in_order = sorted(rows, key=fastest_first)
    trials = tables.tracked((run_id, str(experiment)) for run_id, experiment, *_ in in_order)
    yield from islice((t for t in trials if query.is_on(t.record.device)), query.limit)


_TRIALS = f"""
SELECT r.run_uuid, r.experiment_id, timed.value, r.start_time
FROM tags record {{then}} runs r ON r.run_uuid = record.run_uuid
{{joins}}LEFT JOIN latest_metrics timed ON timed.{{key}} = :time AND timed.run_uuid = r.run_uuid
WHERE record.{{key}} = :record AND {OF_THESE_STUDIES}
"""


def find_trial(store: Store, trial: str) -> TrackedTrial:
    """Returns a trial with its curves, by run id (or first digits) or `study/trial[@certified]`.

    Raises: ConfigError if none or several fit, or it has not finished; ServiceError.
    """
    run = _run_of(store, trial)
    record = schema.unpack_record(run.data.tags)
    if record is None:
        raise ConfigError(_no_record(run, trial))
    found = TrackedTrial(run.info.run_id, run.info.experiment_id, record)
    return next(with_curves(store, [found]))


class FoundSearch(NamedTuple):
    """A search as MLflow has it."""

    run_id: str
    header: dict[str, Any]
    """Of what its ledger's header says, what MLflow has, too."""
    records: list[TrialRecord]
    """Its finished trials with their curves, in the order in which they ended."""


def find_search(store: Store, study: str) -> FoundSearch:
    """Returns a study's one search with trials. Raises: ServiceError; ConfigError."""
    experiments = experiments_of(store, study)
    runs = list(runs_with(store, experiments, {schema.KIND: schema.SEARCH}))
    begun = [run for run in runs if run.data.metrics.get(NUM_TRIALS)]
    if len(begun) != 1:
        raise ConfigError(
            f"{store} must have one search of {study!r} with finished trials, but it has"
            f" {len(begun)}. Begin it again under another name."
        )
    (run,) = begun
    mine = {schema.PARENT: run.info.run_id, schema.KIND: "estimate"}
    trials = list(tracked(runs_with(store, experiments, mine, also=HAS_RECORD)))
    found = {each.record.trial_id: each.record for each in with_curves(store, trials)}
    names = ("search_id", "space_hash", "workload_hash", "protocol_version")
    header: dict[str, Any] = {n: run.data.tags.get(f"{schema.PREFIX}{n}", "") for n in names}
    if header["protocol_version"].isdecimal():
        header["protocol_version"] = int(header["protocol_version"])
    records = sorted(found.values(), key=lambda record: (record.finished_at, record.trial_id))
    return FoundSearch(run.info.run_id, header, records)


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


def tracked(runs: Iterable[Any]) -> Iterator[TrackedTrial]:
    """Yields the trials of MLflow's runs; a run whose record cannot be read is named in the log."""
    for run in runs:
        record = schema.unpack_record(run.data.tags)
        if record is None:
            _log.warning("run %s is left out: its record cannot be read", run.info.run_id)
        else:
            yield TrackedTrial(run.info.run_id, run.info.experiment_id, record)


def _run_of(store: Store, trial: str) -> Any:
    study, slash, trial_id = trial.rpartition("/")
    experiments = experiments_of(store, study if slash else None)
    if slash:
        name, _, kind = trial_id.partition("@")
        wanted = {schema.TRIAL_ID: name, schema.KIND: kind or "estimate"}
        found = list(runs_with(store, experiments, wanted))
    elif _RUN_ID.fullmatch(trial):
        also = f"attributes.run_id LIKE '{trial}%'"
        found = list(islice(runs_with(store, experiments, {}, also=also), 2))
    else:
        found = []
    if len(found) == 1:
        return found[0]
    raise ConfigError(_not_one(store, experiments, trial, found))


def _not_one(store: Store, experiments: Sequence[str], trial: str, found: Sequence[Any]) -> str:
    if found:
        return (
            f"{trial!r} must name one trial, but it fits {', '.join(map(_label, found))}. Give more"
            " of the run id."
        )
    if store.call(lambda client: client.get_experiment_by_name(trial)) is not None:
        return (
            f"{trial!r} must name a trial, but it is a study. Its board: tune-speed leaderboard"
            f" --study {shlex.quote(trial)}; one of its trials: {trial}/t0000."
        )
    finished = list(islice(runs_with(store, experiments, {}, also=HAS_RECORD), NUM_SUGGESTIONS))
    there = f"The latest there are {', '.join(map(_label, finished))}" if finished else ""
    return (
        f"{trial!r} must be the id of a trial's run (or its first {MIN_RUN_ID_PREFIX} digits or"
        f" more), or study/trial, but there is no such trial."
        f" {there or 'No trial has finished there yet'}."
    )


def _no_record(run: Any, trial: str) -> str:
    tags = run.data.tags
    if tags.get(schema.KIND) == schema.SEARCH:
        return (
            f"{trial!r} must name a trial, but it is the search itself. Name a trial: study/t0000."
        )
    if schema.RECORD in tags:
        return f"the record of {trial!r} cannot be read: another version of tune_speed wrote it."
    state = tags.get(schema.STATUS, run.info.status.lower())
    return (
        f"the trial {trial!r} has not finished: it is {state}. Wait for it, or go on with"
        " a study that was interrupted by `tune-speed search … --resume`."
    )


def with_curves(store: Store, trials: Sequence[TrackedTrial]) -> Iterator[TrackedTrial]:
    """Yields the trials with their files' curves, where these are still there; a request each."""
    if trials:
        with ThreadPoolExecutor(CURVE_THREADS) as pool:
            yield from pool.map(partial(_with_curve, store.client), trials)


def _with_curve(client: Any, trial: TrackedTrial) -> TrackedTrial:
    from mlflow.exceptions import MlflowException

    try:
        with TemporaryFolder() as folder:
            path = client.download_artifacts(trial.run_id, schema.RECORD_FILE, str(folder))
            whole = TrialRecord.model_validate_json(Path(path).read_bytes())
    except (MlflowException, OSError, ValidationError) as error:
        _log.debug("%s has no readable %s", trial.run_id, schema.RECORD_FILE, exc_info=error)
        return trial
    return replace(trial, record=whole, has_curve=True)


def _label(run: Any) -> str:
    tags, info = run.data.tags, run.info
    name = f"{tags.get(schema.STUDY, '?')}/{tags.get(schema.TRIAL_ID, info.run_name)}"
    return f"{name} (run {info.run_id})"
