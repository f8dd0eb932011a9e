"""Trials that fit a filter: the store decides what it can, the rest is decided here."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

from tune_speed.core.comparability import board_key
from tune_speed.core.records import Status, TrialRecord
from tune_speed.tracking import schema
from tune_speed.tracking.filter.where import Pushed, Where, in_mlflow
from tune_speed.tracking.reader.queries import TrackedTrial, find_trials, is_on
from tune_speed.tracking.reader.tables import OF_THESE_STUDIES, Row, Tables, read_directly

# Trials in which a filter's field is looked for before it counts as a mistake in writing.
NUM_CHECKED = 1000
TIME_TO_TARGET = "time_to_target_s"

Find = Callable[["Query"], Iterable[TrackedTrial]]


@dataclass(frozen=True, kw_only=True)
class Query:
    """What is queried of a store; None: any."""

    study: str | None = None
    workload: str | None = None
    device: str | None = None
    kind: str | None = None
    only_reached: bool = False
    pushed: tuple[Pushed, ...] = ()
    limit: int | None = None


def find_matching(uri: str, where: Where | None, query: Query) -> list[TrackedTrial]:
    """Returns the finished trials that fit, board by board, the fastest first and misses last.

    Raises: ConfigError if the filter names a field that no trial has; ServiceError.
    """

    def read(tables: Tables) -> list[TrackedTrial] | None:
        if not tables.holds(query.study):
            # Reading through MLflow reports what is wrong.
            return None
        return matching(lambda asked: by_tables(tables, asked), where, query)

    found = read_directly(uri, read)
    if found is None:
        found = matching(lambda asked: by_mlflow(uri, asked), where, query)
    # Stable: times stay in order.
    return sorted(found, key=lambda trial: board_key(trial.record))


def matching(find: Find, where: Where | None, query: Query) -> list[TrackedTrial]:
    """Returns the trials that fit, the fastest first and misses last, by what `find` answers."""
    pushed = where.pushed() if where else ()
    trials = iter(find(replace(query, pushed=pushed)))
    if where is None:
        return list(trials)
    head: list[TrackedTrial] = []

    def to_check() -> Iterator[TrialRecord]:
        """Yields the records found; then, where a field is still unknown, what was left out."""
        for trial in trials:
            head.append(trial)
            yield trial.record
        if pushed or query.only_reached:
            left_out = replace(query, only_reached=False, limit=NUM_CHECKED)
            yield from (trial.record for trial in find(left_out))

    where.check(to_check())
    return [trial for trial in chain(head, trials) if where.matches(trial.record)]


def by_mlflow(uri: str, query: Query) -> list[TrackedTrial]:
    facts = {name: value for name, value in vars(query).items() if name != "pushed"}
    return find_trials(uri, also=in_mlflow(query.pushed), **facts)


def by_tables(tables: Tables, query: Query) -> Iterator[TrackedTrial]:
    """Yields what the tables hold, in the order that MLflow gives."""

    def fastest_first(row: Row) -> tuple[float, float, str]:
        time_s, start_ms = (math.inf if value is None else value for value in row[2:])
        return time_s, start_ms, row[0]

    statement, values = _statement(query)
    rows = sorted(tables.query(statement, values, study=query.study), key=fastest_first)
    trials = tables.tracked((run_id, str(experiment)) for run_id, experiment, *_ in rows)
    yield from islice((t for t in trials if is_on(t.record.device, query.device)), query.limit)


def _statement(query: Query) -> tuple[str, dict[str, str]]:
    wanted = {schema.WORKLOAD: query.workload, schema.KIND: query.kind}
    wanted[schema.STATUS] = Status.REACHED.value if query.only_reached else None
    own = [Pushed(name, "=", value) for name, value in wanted.items() if value is not None]
    joins, values = "", dict(record=schema.RECORD, time=TIME_TO_TARGET)
    for i, each in enumerate((*own, *query.pushed)):
        # The same in SQL.
        assert each.sign in ("=", "!="), each
        joins += (
            f"{{then}} tags c{i} ON c{i}.{{key}} = :name_{i}"
            f" AND c{i}.run_uuid = r.run_uuid AND c{i}.value {each.sign} :value_{i}\n"
        )
        values |= {f"name_{i}": each.tag, f"value_{i}": each.value}
    return _TRIALS.replace("{joins}", joins), values


_TRIALS = f"""
SELECT r.run_uuid, r.experiment_id, timed.value, r.start_time
FROM tags record {{then}} runs r ON r.run_uuid = record.run_uuid
{{joins}}LEFT JOIN latest_metrics timed ON timed.{{key}} = :time AND timed.run_uuid = r.run_uuid
WHERE record.{{key}} = :record AND {OF_THESE_STUDIES}
"""
