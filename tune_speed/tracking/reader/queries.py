"""Reads trials back, from any process, while a study is written or after it.

A record comes from a trial's tags; its curves lie in an artifact (`with_curves`).
"""

import json
import logging
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from tune_speed.core.comparability import ComparisonKey, board_key
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status, StepTime, TrialRecord
from tune_speed.core.text import recorded_device
from tune_speed.runtime.file_lock import TemporaryFolder
from tune_speed.tracking import schema
from tune_speed.tracking.filter.fields import FieldReader
from tune_speed.tracking.filter.where import Where
from tune_speed.tracking.reader.changes import (
    HAS_RECORD,
    NUM_SUGGESTIONS,
    SearchRun,
    Seen,
    ask,
    experiments_of,
    tracked,
)
from tune_speed.tracking.reader.tables import TrackedTrial
from tune_speed.tracking.record_index import RecordIndex
from tune_speed.tracking.store.store import Store, runs_with

MIN_RUN_ID_PREFIX = 6
# Trials in which a filter's field is looked for before it counts as a mistake in writing.
NUM_CHECKED = 1000
# The latest measurements that are read: what is older was mostly made with other versions.
MOST_MEASURED = 1000
CURVE_THREADS = 4

IS_TRIAL = "board IS NOT NULL AND NOT is_deleted"
"""Of the index: trials that are not in the trash and can be read."""
FASTEST_FIRST = "ORDER BY time_s IS NULL, time_s, start_ms, run_id"
BEST_FIRST = "ORDER BY ranked_s, COALESCE(-goodness, 9e999), study, trial_id"
"""As `comparability.best_first`, of those that have a rank."""

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

    def takes(self, key: ComparisonKey) -> bool:
        """Whether a board is of the workload, device and kind."""
        part = "" if self.device is None else recorded_device(self.device)
        is_on = part.casefold() in str(key.device).casefold()
        return is_on and self.workload in (None, key.workload) and self.kind in (None, key.kind)


ANY = Query()


def find_trials(
    store: Store, query: Query = ANY, *, with_curve: bool = False
) -> list[TrackedTrial]:
    """Returns the finished trials that fit, the fastest first and misses last.

    Raises: ServiceError if the store does not answer; ConfigError if it does not hold the study,
        or the filter names a field that no trial has.
    """

    def read(index: RecordIndex, seen: Seen) -> list[TrackedTrial]:
        experiments = list(seen.studies) or experiments_of(store, query.study)
        runs = _runs_of(index, experiments, query)
        if query.where is not None:
            every = partial(_runs_of, index, experiments, replace(query, only_reached=False))
            runs = fitting(index, query.where, runs, every)
        return list(tracked(index, runs))

    found = ask(store, query.study, read)
    return list(with_curves(store, found)) if with_curve else found


def boards_in(index: RecordIndex, experiments: Sequence[str]) -> dict[str, ComparisonKey]:
    """Returns the boards that have trials, by their text in the index."""
    rows = index.rows("DISTINCT board", experiments, IS_TRIAL)
    return {board: key_of(board) for (board,) in rows}


def key_of(board: str) -> ComparisonKey:
    return ComparisonKey(*json.loads(board))


def _runs_of(index: RecordIndex, experiments: Sequence[str], query: Query) -> list[Any]:
    boards = [text for text, key in boards_in(index, experiments).items() if query.takes(key)]
    wanted = f"{IS_TRIAL} AND board IN (SELECT value FROM json_each(?))"
    if query.only_reached:
        wanted += f" AND status = '{Status.REACHED.value}'"
    limit = -1 if query.limit is None else query.limit
    ordered = f"{wanted} {FASTEST_FIRST} LIMIT {limit}"
    return index.rows("run_id, experiment_id", experiments, ordered, json.dumps(boards))


def fitting(
    index: RecordIndex, where: Where, runs: Sequence[Any], every: Callable[[], Sequence[Any]]
) -> list[Any]:
    """Returns the runs for which a filter holds, by the index's own copy of its fields.

    A field that none of `runs` has is looked for in `every` as well.

    Raises: ConfigError if it is not there either, or means several settings of a recipe.
    """
    fields = _values_of(index, where.fields, runs)
    if not all(any(values[run_id] for run_id, *_ in runs) for values in fields.values()):
        where.check(trial.record for trial in tracked(index, every()[:NUM_CHECKED]))
    parsed = cache(json.loads)

    def value(run: Any, name: str) -> Any:
        text = fields[name][run[0]]
        if text != _SEVERAL:
            return parsed(text) if text else None
        (trial,) = tracked(index, [run])  # It says which.
        return FieldReader(trial.record).value(name)

    return [run for run in runs if where.root.holds(partial(value, run))]


# A field that means several settings of a recipe.
_SEVERAL = "several"


def _values_of(
    index: RecordIndex, names: Sequence[str], runs: Sequence[Any]
) -> dict[str, dict[str, str]]:
    """Returns by field the value as JSON by run id; empty where the recipe has no such field."""
    kept = {name: index.field(name) for name in names}
    complete = set.intersection(*map(set, kept.values()))
    missing = [run for run in runs if run[0] not in complete]
    new = {name: dict.fromkeys((run_id for run_id, *_ in missing), "") for name in names}
    for trial in tracked(index, missing):
        asked = FieldReader(trial.record)
        for name in names:
            new[name][trial.run_id] = _as_json(asked, name)
    index.keep_fields(new)
    return {name: {**kept[name], **new[name]} for name in names}


def _as_json(asked: FieldReader, name: str) -> str:
    try:
        value = asked.value(name)
    except ConfigError:
        return _SEVERAL
    return json.dumps(value) if asked.knows(name) else ""


def by_board(trials: Iterable[TrackedTrial]) -> list[TrackedTrial]:
    return sorted(trials, key=lambda trial: board_key(trial.record))


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


def find_step_times(store: Store) -> tuple[StepTime, ...]:
    """Returns the windows on record of all studies, the oldest first. Raises: ServiceError."""
    # Of all studies: keys hold device and versions, so that none is used where it does not hold.

    def read(index: RecordIndex, seen: Seen) -> list[TrackedTrial]:
        measured = f"{IS_TRIAL} AND num_windows ORDER BY start_ms DESC LIMIT {MOST_MEASURED}"
        return list(tracked(index, index.rows("run_id, experiment_id", seen.studies, measured)))

    trials = ask(store, None, read)
    return tuple(each for trial in reversed(trials) for each in schema.own_windows(trial.record))


class FoundSearch(NamedTuple):
    """A search as MLflow has it."""

    run_id: str
    header: dict[str, Any]
    """Of what its ledger's header says, what MLflow has, too."""
    records: list[TrialRecord]
    """Its finished trials with their curves, in the order in which they ended."""


def find_search(store: Store, study: str) -> FoundSearch:
    """Returns a study's one search with trials. Raises: ServiceError; ConfigError."""

    def read(index: RecordIndex, seen: Seen) -> list[tuple[SearchRun, list[TrackedTrial]]]:
        mine = f"{IS_TRIAL} AND parent_id = ? AND kind = 'estimate'"
        own = {
            search.run_id: index.rows("run_id, experiment_id", seen.studies, mine, search.run_id)
            for search in seen.searches
        }
        return [(s, list(tracked(index, own[s.run_id]))) for s in seen.searches if own[s.run_id]]

    begun = ask(store, study, read)
    if len(begun) != 1:
        raise ConfigError(
            f"{store} must have one search of {study!r} with finished trials, but it has"
            f" {len(begun)}. Begin it again under another name."
        )
    ((search, trials),) = begun
    found = {each.record.trial_id: each.record for each in with_curves(store, trials)}
    names = ("search_id", "space_hash", "workload_hash", "protocol_version")
    header: dict[str, Any] = {name: search.tags.get(name, "") for name in names}
    if header["protocol_version"].isdecimal():
        header["protocol_version"] = int(header["protocol_version"])
    records = sorted(found.values(), key=lambda record: (record.finished_at, record.trial_id))
    return FoundSearch(search.run_id, header, records)


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
