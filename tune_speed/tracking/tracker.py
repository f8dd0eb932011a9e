"""The observer of a search that writes it to MLflow, from a thread of its own.

The driver's calls only put what happened into a queue. The thread folds the events of a moment into
one outbox per trial and empties the outboxes; where the store does not answer, it waits and tries
again, longer each time. What it could not deliver is named by `close`. The study's ledger is the
durable copy, and `reconcile` delivers from it.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from tune_speed.records import Evaluation, TrialRecord
from tune_speed.tracking import schema, sqlite
from tune_speed.tracking.deadline import within
from tune_speed.tracking.outbox import Outbox, deliver, is_permanent
from tune_speed.tracking.store import errors_of, explain
from tune_speed.tracking.study_runs import StudyRuns
from tune_speed.tracking.summary import Summary
from tune_speed.tracking.uri import sqlite_path, store_kind, strip_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient

LINGER_S = 0.2
"""Events that come within this time go to the store together."""
FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_WHEN_CLOSING_S = 0.5, 30.0, 1.0
OPEN_S = 15.0
"""Longest wait for the study's experiment and parent run."""
ESTIMATE = "estimate"

_log = logging.getLogger(__name__)


class Undelivered(NamedTuple):
    """A trial that MLflow does not show, or not completely."""

    trial_id: str
    reason: str


class Tracker:
    """Writes one search to MLflow. The `trial_` methods return at once and never raise."""

    def __init__(
        self,
        client: "MlflowClient",
        *,
        study: str,
        study_tags: Mapping[str, str],
        search_id: str = "",
        linger_s: float = LINGER_S,
    ) -> None:
        """Finds or creates the study's experiment and the search's parent run, and begins.

        `study_tags` go to every run as `tune_speed.<name>`. `search_id` tells two searches of one
        study apart; resuming a search gives the same one.

        Raises: ServiceError or StorageError if the store does not take it within 15 s.
        """
        self.uri = str(client.tracking_uri)
        with errors_of(self.uri):
            self._runs = within(
                OPEN_S,
                lambda: StudyRuns.open(client, study=study, search_id=search_id, tags=study_tags),
            )
        self.experiment_id, self.run_id = self._runs.experiment_id, self._runs.parent_id
        self.trouble: str | None = None
        """Why nothing can be delivered at the moment; None if all is well."""
        self._events: SimpleQueue[tuple[str, Callable[[], None]]] = SimpleQueue()
        self._open_trials: set[str] = set()
        self._refused: dict[str, str] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._ledger: dict[str, TrialRecord] | None = None
        self._summary = Summary()
        self._linger_s = linger_s
        self._pause_s, self._retry_at = FIRST_PAUSE_S, 0.0
        self._closing, self._deadline = threading.Event(), 0.0
        self._last_status, self._has_ended = "FINISHED", False
        self._thread = threading.Thread(target=self._work, name="tune_speed-tracker", daemon=True)
        self._thread.start()

    def trial_started(
        self, *, trial_id: str, params: Mapping[str, Any], recipe: Mapping[str, Any]
    ) -> None:
        """Takes note of a trial that is about to start, for the first time or again."""
        now_ms = round(time.time() * 1000)
        self._open_trials.add(trial_id)
        self._put(trial_id, lambda: self._take_start(trial_id, params, recipe, now_ms))

    def trial_evaluated(self, *, trial_id: str, evaluation: Evaluation) -> None:
        """Takes note of an evaluation."""
        self._put(trial_id, lambda: self._take_evaluation(trial_id, evaluation))

    def trial_finished(self, *, record: TrialRecord) -> None:
        """Takes note of a trial's outcome."""
        self._open_trials.add(record.trial_id)
        self._put(record.trial_id, lambda: self._take_record(record))

    def trial_interrupted(self, *, trial_id: str, reason: str) -> None:
        """Takes note of a trial that was stopped without an outcome."""
        self._put(trial_id, lambda: self._take_interruption(trial_id, reason))

    def reconcile(self, records: Iterable[TrialRecord]) -> None:
        """Makes MLflow show each of the ledger's records once, and nothing running that is not.

        Call it when a search is resumed, before its first trial starts.
        """
        ledger = {record.trial_id: record for record in records}
        self._open_trials.update(ledger)
        self._put("", lambda: self._take_ledger(ledger))

    def close(self, *, timeout_s: float, interrupted: bool = False) -> tuple[Undelivered, ...]:
        """Delivers what it can within `timeout_s` and ends the search's run.

        Returns the trials that MLflow does not show completely; the next `reconcile` delivers them.
        """
        self._last_status = "KILLED" if interrupted else "FINISHED"
        self._deadline = time.monotonic() + timeout_s
        self._closing.set()
        self._retry_at = 0.0
        self._put("", lambda: None)
        self._thread.join(timeout_s)
        reason = self.trouble or "there was no time left"
        missing = dict.fromkeys(tuple(self._open_trials), reason) | self._refused
        return tuple(Undelivered(*item) for item in sorted(missing.items()))

    def _put(self, trial_id: str, take: Callable[[], None]) -> None:
        self._events.put((trial_id, take))

    # What follows runs in the thread.

    def _work(self) -> None:
        while not self._is_over():
            is_last = self._closing.is_set()  # Asked before events are taken: none came later.
            if is_last:
                latest = time.monotonic() + LONGEST_PAUSE_WHEN_CLOSING_S
                self._retry_at = min(self._retry_at, latest)
            self._gather()
            if is_last:
                self._interrupt_rest()
            if time.monotonic() >= self._retry_at:
                self._deliver(is_last=is_last)

    def _is_over(self) -> bool:
        is_late = time.monotonic() >= self._deadline
        return self._closing.is_set() and (self._has_ended or is_late)

    def _gather(self) -> None:
        """Waits for an event, or until it is time to try again, and takes all that there are."""
        try:
            first = self._events.get(timeout=self._wait_s())
        except Empty:
            return
        self._closing.wait(self._linger_s)
        for event in (first, *(self._events.get() for _ in range(self._events.qsize()))):
            self._take(*event)

    def _take(self, trial_id: str, take: Callable[[], None]) -> None:
        try:
            take()
        except Exception as error:  # Such as a recipe that is no tree: it must not end the thread.
            _log.exception("trial %s cannot be tracked", trial_id)
            self._refused[trial_id] = f"{type(error).__name__}: {error}"

    def _wait_s(self) -> float | None:
        is_waiting = self._closing.is_set() or self._ledger is not None or self._summary.is_new
        if is_waiting or any(outbox.is_due for outbox in self._outboxes.values()):
            return max(0.0, self._retry_at - time.monotonic())
        return None

    def _take_start(
        self, trial_id: str, params: Mapping[str, Any], recipe: Mapping[str, Any], now_ms: int
    ) -> None:
        self._open_trials.add(trial_id)
        entries = schema.param_entries(recipe, params)
        self._outboxes[trial_id] = Outbox((ESTIMATE, trial_id), now_ms, entries, is_new=True)

    def _take_evaluation(self, trial_id: str, evaluation: Evaluation) -> None:
        outbox = self._outboxes.get(trial_id)
        if outbox is not None and not outbox.has_ended:
            outbox.evaluations.append(evaluation)

    def _take_record(self, record: TrialRecord) -> None:
        self._summary.add(record)
        outbox = self._outboxes.get(record.trial_id)
        if outbox is None:
            outbox = self._outboxes[record.trial_id] = self._outbox_of(record)
        outbox.record, outbox.interrupted = record, None

    def _take_interruption(self, trial_id: str, reason: str) -> None:
        outbox = self._outboxes.get(trial_id)
        if outbox is not None and not outbox.has_ended:
            outbox.interrupted = reason

    def _take_ledger(self, ledger: dict[str, TrialRecord]) -> None:
        self._ledger = ledger
        for record in ledger.values():
            self._summary.add(record)

    def _interrupt_rest(self) -> None:
        for trial_id in self._outboxes:
            self._take_interruption(trial_id, "the search ended before the trial")

    def _outbox_of(self, record: TrialRecord) -> Outbox:
        """Returns an outbox for a record whose start was not seen in this session."""
        key = (record.kind, record.trial_id)
        start_ms = schema.start_time_ms(record) or round(time.time() * 1000)
        params = schema.param_entries(record.recipe, record.params)
        return Outbox(key, start_ms, params, record=record)

    def _deliver(self, *, is_last: bool) -> None:
        """Delivers all that is due; after an error, the rest waits for the next time."""
        try:
            self._reconcile()
            for trial_id in [t for t, outbox in self._outboxes.items() if outbox.is_due]:
                self._deliver_trial(trial_id)
            self._deliver_summary(is_last=is_last)
        except Exception as error:
            self._pause(error)
        else:
            self.trouble, self._pause_s = None, FIRST_PAUSE_S

    def _deliver_trial(self, trial_id: str) -> None:
        outbox = self._outboxes.pop(trial_id)
        try:
            refused = deliver(outbox, self._runs)
        except Exception as error:
            if not is_permanent(error):
                self._outboxes[trial_id] = outbox  # At the end: another trial is tried first.
                raise
            refused = self._give_up(outbox, error)
        self._pause_s = FIRST_PAUSE_S
        self._refused.pop(trial_id, None)
        if refused is not None:
            self._refused[trial_id] = refused
        if outbox.has_ended or refused is not None:
            self._open_trials.discard(trial_id)
        else:
            self._outboxes[trial_id] = outbox

    def _give_up(self, outbox: Outbox, error: Exception) -> str:
        """Leaves one trial out, its run ended where possible, and returns why."""
        _log.debug("trial %s cannot be delivered", outbox.key[1], exc_info=error)
        reason = strip_secrets(f"{type(error).__name__}: {error}")
        ref = self._runs.known().get(outbox.key)
        try:
            if ref is not None and outbox.has_ended:
                self._runs.end(ref, "KILLED")
        except Exception as second:
            reason = strip_secrets(f"{reason}; and then {type(second).__name__}: {second}")
        return reason

    def _reconcile(self) -> None:
        if self._ledger is None:
            return
        self._runs.forget()
        known = dict(self._runs.known())
        for trial_id, record in self._ledger.items():
            ref = known.get((record.kind, trial_id))
            if ref is not None and ref.is_complete:
                self._open_trials.discard(trial_id)
            elif trial_id not in self._outboxes:
                self._outboxes[trial_id] = self._outbox_of(record)
        for key, ref in known.items():
            if not ref.has_ended and key[1] not in self._outboxes:
                self._runs.write(ref, tags=schema.interrupted_tags("the search's process ended"))
                self._runs.end(ref, "KILLED")
        self._ledger = None

    def _deliver_summary(self, *, is_last: bool) -> None:
        try:
            if self._summary.is_new:
                now = datetime.now(UTC)
                points, tags = self._summary.points(now=now), self._summary.tags(now=now)
                self._runs.write_parent(points=points, tags=tags)
                self._summary.is_new = False
            if is_last:
                self._runs.end_parent(self._last_status)
        except Exception as error:
            if not is_permanent(error):
                raise
            _log.warning("the search's run %s cannot be written: %s", self.run_id, error)
            self._summary.is_new = False
        if is_last:
            self._analyze()
            self._has_ended = True

    def _analyze(self) -> None:
        if store_kind(self.uri) == "sqlite":
            sqlite.analyze(sqlite_path(self.uri))

    def _pause(self, error: Exception) -> None:
        _log.debug("delivery to MLflow failed", exc_info=error)
        self.trouble = str(explain(error, self.uri))
        self._retry_at = time.monotonic() + self._pause_s * random.uniform(0.75, 1.25)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
