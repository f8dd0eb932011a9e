"""The studies of a store at a glance, and the runs of their searches."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tune_speed.core.records import Status
from tune_speed.tracking import schema
from tune_speed.tracking.reader.changes import SearchRun, Seen, ask
from tune_speed.tracking.reader.queries import BEST_FIRST, IS_TRIAL, key_of
from tune_speed.tracking.record_index import RecordIndex
from tune_speed.tracking.store.store import Store


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


def list_studies(store: Store) -> list[StudySummary]:
    """Returns all studies, the latest active first. Raises: ServiceError."""

    def read(index: RecordIndex, seen: Seen) -> list[StudySummary]:
        searches: dict[str, list[SearchRun]] = {experiment_id: [] for experiment_id in seen.studies}
        for each in seen.searches:
            # A search may have begun meanwhile, in an experiment of its own.
            if each.tags.get("kind") == schema.SEARCH and each.experiment_id in searches:
                searches[each.experiment_id].append(each)
        return [_summarised(name, searches[of], index, of) for of, name in seen.studies.items()]

    studies = sorted(ask(store, None, read), key=lambda study: study.name)
    return sorted(studies, key=lambda study: study.last_activity, reverse=True)


def _summarised(
    name: str, searches: Sequence[SearchRun], index: RecordIndex, experiment_id: str
) -> StudySummary:
    own, parents = [experiment_id], json.dumps([search.run_id for search in searches])
    of_search = f"{IS_TRIAL} AND parent_id IN (SELECT value FROM json_each(?))"
    counts = index.rows("status, COUNT(*)", own, f"{of_search} GROUP BY status", parents)
    boards = index.rows("DISTINCT board", own, of_search, parents)
    ranked = f"{of_search} AND ranked_s IS NOT NULL {BEST_FIRST} LIMIT 1"
    best = index.rows("trial_id, time_s", own, ranked, parents)
    best_trial, best_time_s = best[0] if best else (None, None)
    tags = {key: value for search in searches for key, value in search.stored.items()}
    found = dict(counts)
    return StudySummary(
        name=name,
        experiment_id=experiment_id,
        workload=tags.get(schema.WORKLOAD, ""),
        device="; ".join(sorted({key_of(board).device for (board,) in boards})),
        num_trials={status: found[status.value] for status in Status if status.value in found},
        best_time_s=best_time_s,
        best_trial=best_trial,
        last_activity=max((s.stored.get(schema.UPDATED_AT, "") for s in searches), default=""),
        is_running=any(search.is_running for search in searches),
    )
