"""The thread that carries a search's events to MLflow.

It folds the events of a moment into one outbox per trial and empties the outboxes. Where the store
does not answer, it waits and tries again, longer each time; where it refuses one trial for good,
that trial is left out and named.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any

from tune_speed.core.records import Evaluation, TrialRecord
from tune_speed.tracking import schema
from tune_speed.tracking.search_summary import Summary
from tune_speed.tracking.store.errors import explain
from tune_speed.tracking.store.uri import strip_secrets
from tune_speed.tracking.writer import descriptions
from tune_speed.tracking.writer.descriptions import SearchPlan
from tune_speed.tracking.writer.outbox import Outbox, deliver, is_permanent
from tune_speed.tracking.writer.runs import StudyRuns

FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_AT_THE_END_S = 0.5, 30.0, 1.0
ESTIMATE = "estimate"

_log = logging.getLogger(__name__)


class Courier:
    """Delivers what is put into its queue. `put` and `end` are for the driver's thread."""

    def __init__(
        self, runs: StudyRuns, *, uri: str, linger_s: float, plan: SearchPlan | None = None
    ) -> None:
        self.trouble: str | None = None
        """Why nothing can be delivered at the moment; None if all is well."""
        self.expected: set[str] = set()
        """Trials that were announced and are not completely delivered."""
        self.refused: dict[str, str] = {}
        """Trials that cannot be delivered, and why."""
        self._runs, self._uri, self._linger_s, self._plan = runs, uri, linger_s, plan
        self._events: SimpleQueue[tuple[str, Callable[[], None]]] = SimpleQueue()
        self._outboxes: dict[str, Outbox] = {}
        self._ledger: Mapping[str, TrialRecord] | None = None
        self._summary = Summary()
        self._pause_s, self._retry_at = FIRST_PAUSE_S, 0.0
        self._ending, self._has_ended = threading.Event(), False
        self._deadline, self._last_status = 0.0, "FINISHED"
        self._had_trouble = False
        self._thread = threading.Thread(target=self._work, name="tune_speed-tracker", daemon=True)
        self._thread.start()

    def put(self, trial_id: str, take: Callable[[], None]) -> None:
        """Queues one of the `take_` calls, for the thread to make."""
        self._events.put((trial_id, take))

    def end(self, *, timeout_s: float, status: str) -> bool:
        """Returns whether all came through within `timeout_s`; the search then ends as `status`."""
        self._last_status = status
        self._deadline = time.monotonic() + timeout_s
        self._ending.set()
        self._retry_at = 0.0
        self.put("", lambda: None)
        self._thread.join(timeout_s)
        return self._has_ended

    def take_start(
        self, trial_id: str, params: Mapping[str, Any], recipe: Mapping[str, Any], now_ms: int
    ) -> None:
        """Begins an attempt at a trial."""
        self.expected.add(trial_id)
        entries = schema.param_entries(recipe, params)
        self._outboxes[trial_id] = Outbox(
            (ESTIMATE, trial_id), now_ms, entries, tuple(params), is_new=True
        )

    def take_evaluation(self, trial_id: str, evaluation: Evaluation) -> None:
        """Adds to a running trial's curve."""
        outbox = self._outboxes.get(trial_id)
        if outbox is not None and not outbox.has_ended:
            outbox.evaluations.append(evaluation)

    def take_record(self, record: TrialRecord) -> None:
        """Ends a trial with its outcome."""
        self._summary.add(record)
        outbox = self._outboxes.get(record.trial_id)
        if outbox is None:
            outbox = self._outboxes[record.trial_id] = _outbox_of(record)
        outbox.take(record)

    def take_interruption(self, trial_id: str, reason: str) -> None:
        """Ends a trial without an outcome."""
        outbox = self._outboxes.get(trial_id)
        if outbox is not None and not outbox.has_ended:
            outbox.interrupted = reason

    def take_ledger(self, ledger: Mapping[str, TrialRecord]) -> None:
        """Takes all finished trials of the search, to be compared with what MLflow has."""
        self._ledger = ledger
        for record in ledger.values():
            self._summary.add(record)

    def _work(self) -> None:
        while not (
            self._ending.is_set() and (self._has_ended or time.monotonic() >= self._deadline)
        ):
            # Read before the events: what is put after it comes in another round.
            is_last = self._ending.is_set()
            if is_last:
                latest = time.monotonic() + LONGEST_PAUSE_AT_THE_END_S
                self._retry_at = min(self._retry_at, latest)
            self._gather()
            if is_last:
                for trial_id in self._outboxes:
                    self.take_interruption(trial_id, "the search ended before the trial")
            if time.monotonic() >= self._retry_at:
                self._deliver(is_last=is_last)

    def _gather(self) -> None:
        """Waits for an event, or until it is time to try again, and takes all that there are."""
        has_work = self._ending.is_set() or self._ledger is not None or self._summary.is_new
        if has_work or any(outbox.is_due for outbox in self._outboxes.values()):
            wait_s = max(0.0, self._retry_at - time.monotonic())
        else:
            wait_s = None
        try:
            first = self._events.get(timeout=wait_s)
        except Empty:
            return
        # Events of one moment are delivered together; the end of a search does not linger.
        self._ending.wait(self._linger_s)
        rest = [self._events.get() for _ in range(self._events.qsize())]
        for trial_id, take in (first, *rest):
            try:
                take()
            except Exception as error:
                # Such as a recipe that is no tree: it must not end the thread.
                _log.exception("trial %s cannot be tracked", trial_id)
                self.refused[trial_id] = f"{type(error).__name__}: {error}"

    def _deliver(self, *, is_last: bool) -> None:
        """Delivers all that is due; after an error, the rest waits for the next time."""
        try:
            self._reconcile()
            for trial_id in [t for t, outbox in self._outboxes.items() if outbox.is_due]:
                self._deliver_trial(trial_id)
            self._deliver_summary(is_last=is_last)
        except Exception as error:
            _log.debug("delivery to MLflow failed", exc_info=error)
            self.trouble, self._had_trouble = str(explain(error, self._uri)), True
            # Jitter keeps the searches that lost the same server from returning all at once.
            self._retry_at = time.monotonic() + self._pause_s * random.uniform(0.75, 1.25)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            self.trouble, self._pause_s = None, FIRST_PAUSE_S

    def _deliver_trial(self, trial_id: str) -> None:
        outbox = self._outboxes.pop(trial_id)
        try:
            refused = deliver(outbox, self._runs)
        except Exception as error:
            if not is_permanent(error):
                # At the end: another trial is tried first.
                self._outboxes[trial_id] = outbox
                raise
            refused = self._give_up(outbox, error)
        self._pause_s = FIRST_PAUSE_S
        self.refused.pop(trial_id, None)
        if refused is not None:
            self.refused[trial_id] = refused
        if outbox.has_ended or refused is not None:
            self.expected.discard(trial_id)
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
        """Compares the ledger with MLflow: makes outboxes of what is missing, ends what is over."""
        if self._ledger is None:
            return
        self._runs.forget()
        known = dict(self._runs.known())
        for trial_id, record in self._ledger.items():
            ref = known.get((record.kind, trial_id))
            if ref is not None and ref.is_complete:
                self.expected.discard(trial_id)
            elif trial_id not in self._outboxes:
                self._outboxes[trial_id] = _outbox_of(record)
        for key, ref in known.items():
            if not ref.has_ended and key[1] not in self._outboxes:
                reason = "the search's process ended"
                note = {descriptions.NOTE: descriptions.interrupted_note(reason)}
                self._runs.write(ref, tags=schema.interrupted_tags(reason) | note)
                self._runs.end(ref, "KILLED")
        self._ledger = None

    def _deliver_summary(self, *, is_last: bool) -> None:
        try:
            if self._summary.is_new:
                tags = self._summary.tags(now=datetime.now(UTC)) | self._search_note()
                self._runs.write_parent(points=self._summary.points(), tags=tags)
                self._summary.is_new = False
            if is_last:
                if self._had_trouble:
                    # A request that the store took after we had given it up may have made a second
                    # run of a trial; finding all runs again deletes it.
                    self._runs.forget()
                    self._runs.known()
                self._runs.end_parent(self._last_status)
        except Exception as error:
            if not is_permanent(error):
                raise
            _log.warning("the search's own run cannot be written: %s", error)
            self._summary.is_new = False
        self._has_ended = is_last

    def _search_note(self) -> dict[str, str]:
        if self._plan is None:
            return {}
        statuses, best = self._summary.statuses(), self._summary.best
        ref = self._runs.known().get((best.kind, best.trial_id)) if best is not None else None
        link = f"#/experiments/{self._runs.experiment_id}/runs/{ref.run_id}" if ref else ""
        note = descriptions.search_note(self._plan, statuses=statuses, best=best, link=link)
        return {descriptions.NOTE: note}


def _outbox_of(record: TrialRecord) -> Outbox:
    """Returns an outbox for a record whose start was not seen in this session."""
    start_ms = schema.start_time_ms(record) or round(time.time() * 1000)
    params = schema.param_entries(record.recipe, record.params)
    key = (record.kind, record.trial_id)
    return Outbox(key, start_ms, params, tuple(record.params), record=record)
