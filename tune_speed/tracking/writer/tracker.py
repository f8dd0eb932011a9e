"""The observer of a search that writes it to MLflow.

The driver's calls only put what happened into the courier's queue: they take microseconds and
never raise, whatever the store does. What could not be delivered is named by `close`. The study's
ledger is the durable copy, and `reconcile` delivers from it.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tune_speed.core.records import PROTOCOL_VERSION, Evaluation, TrialRecord
from tune_speed.tracking import schema
from tune_speed.tracking.store import sqlite
from tune_speed.tracking.store.deadline import within
from tune_speed.tracking.store.errors import errors_of
from tune_speed.tracking.store.store import open_store
from tune_speed.tracking.store.uri import sqlite_path, store_kind, tracking_uri
from tune_speed.tracking.writer.delivery import Courier
from tune_speed.tracking.writer.descriptions import SearchPlan
from tune_speed.tracking.writer.runs import StudyRuns

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Events that come within this time go to the store together.
LINGER_S = 1.0
MOST_NAMED = 20
"""Undelivered trials that a message names."""
# Longest wait for the store at the end [s]; what it has not taken is in the ledger.
DELIVERY_S = 60.0
# Longest wait for the study's experiment and parent run, some ten requests.
OPEN_S = 120.0


class Undelivered(NamedTuple):
    """A trial that MLflow does not show, or not completely."""

    trial_id: str
    reason: str


def names_of(undelivered: Sequence[Undelivered]) -> str:
    """Returns the trials in words, such as `2 trials, t0003 and t0004`."""
    names = [each.trial_id for each in undelivered]
    number = f"{len(names)} trial{'s' if len(names) > 1 else ''}"
    if len(names) > MOST_NAMED:
        return f"{number}, {', '.join(names[:MOST_NAMED])} and more"
    return f"{number}, {' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}"


class Tracker:
    """Writes one search to MLflow."""

    def __init__(
        self,
        client: "MlflowClient",
        *,
        study: str,
        study_tags: Mapping[str, str],
        search_id: str = "",
        parent_kind: str = schema.SEARCH,
        linger_s: float = LINGER_S,
        plan: SearchPlan | None = None,
        is_only: bool = False,
    ) -> None:
        """Finds or creates the study's experiment and the search's parent run, and begins.

        `study_tags` go to every run as `tune_speed.<name>`. `search_id` distinguishes two searches
        of one study; resuming a search gives the same one. `parent_kind` is what the parent run is.
        `plan` is for descriptions, which MLflow's pages show.

        Raises: ServiceError or StorageError if the store does not take it within two minutes;
            ConfigError if the search `is_only` to be one of its name, and the store has another.
        """
        self._uri = str(client.tracking_uri)
        with errors_of(self._uri):
            runs = within(
                OPEN_S,
                lambda: StudyRuns.open(
                    client,
                    study=study,
                    search_id=search_id,
                    tags=study_tags,
                    parent_kind=parent_kind,
                    plan=plan,
                    is_only=is_only,
                ),
            )
        self.experiment_id, self.run_id = runs.experiment_id, runs.parent_id
        self._courier = Courier(runs, uri=self._uri, linger_s=linger_s, plan=plan)
        self._reported: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why nothing can be delivered at the moment; None if all is well."""
        return self._courier.trouble

    def news(self) -> tuple[str, ...]:
        """Returns a line where trouble has come, changed or gone since the last call."""
        trouble, reported = self.trouble, self._reported
        self._reported = trouble
        if trouble == reported:
            return ()
        if trouble is None:
            return ("MLflow answers again, and gets what it has missed",)
        return (f"trials go on, and their results wait in the study's ledger: {trouble}",)

    def trial_started(
        self, *, trial_id: str, params: Mapping[str, Any], recipe: Mapping[str, Any]
    ) -> None:
        """Queues a trial that is about to start, for the first time or again."""
        courier, now_ms = self._courier, round(time.time() * 1000)
        courier.expected.add(trial_id)
        courier.put(trial_id, lambda: courier.take_start(trial_id, params, recipe, now_ms))

    def trial_evaluated(self, *, trial_id: str, evaluation: Evaluation) -> None:
        """Queues an evaluation."""
        self._courier.put(trial_id, lambda: self._courier.take_evaluation(trial_id, evaluation))

    def trial_finished(self, *, record: TrialRecord) -> None:
        """Queues a trial's outcome."""
        self._courier.expected.add(record.trial_id)
        self._courier.put(record.trial_id, lambda: self._courier.take_record(record))

    def trial_interrupted(self, *, trial_id: str, reason: str) -> None:
        """Queues a trial that was stopped without an outcome."""
        self._courier.put(trial_id, lambda: self._courier.take_interruption(trial_id, reason))

    def reconcile(self, records: Iterable[TrialRecord]) -> None:
        """Makes MLflow show each of the ledger's records once, and nothing running that is not.

        Call it when a search is resumed, before its first trial starts. Returns at once.
        """
        ledger = {record.trial_id: record for record in records}
        self._courier.expected.update(ledger)
        self._courier.put("", lambda: self._courier.take_ledger(ledger))

    def close(self, *, timeout_s: float, interrupted: bool = False) -> tuple[Undelivered, ...]:
        """Delivers what it can within `timeout_s` and ends the search's run.

        Returns the trials that MLflow does not show completely; the next `reconcile` delivers them.
        """
        courier, status = self._courier, "KILLED" if interrupted else "FINISHED"
        if courier.end(timeout_s=timeout_s, status=status) and store_kind(self._uri) == "sqlite":
            sqlite.analyze(sqlite_path(self._uri))
        reason = courier.trouble or "there was no time left"
        missing = dict.fromkeys(tuple(courier.expected), reason) | courier.refused
        return tuple(Undelivered(*item) for item in sorted(missing.items()))


def deliver(
    records: Sequence[TrialRecord], *, study: str, search_id: str, parent_kind: str = schema.SEARCH
) -> tuple[Undelivered, ...]:
    """Delivers records of one workload as the trials of a study; returns what was not taken.

    Raises: ServiceError or StorageError if the store cannot be opened.
    """
    tags = {
        "workload": records[0].workload_name,
        "workload_hash": records[0].workload_hash,
        "protocol_version": str(PROTOCOL_VERSION),
    }
    tracker = Tracker(
        open_store(tracking_uri()),
        study=study,
        study_tags=tags,
        search_id=search_id,
        parent_kind=parent_kind,
    )
    tracker.reconcile(records)
    return tracker.close(timeout_s=DELIVERY_S)
