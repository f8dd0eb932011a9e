"""The observer of a search that writes it to MLflow, in a thread of its own.

The driver's calls only queue what happened: they take microseconds and never raise. The thread
folds events into one outbox a trial and empties the outboxes. Where the store does not answer, it
tries again, longer each time; what it refuses for good is left out and named by `close`. The
study's ledger is the durable copy, and `reconcile` delivers from it.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from tune_speed.core.records import PROTOCOL_VERSION, Evaluation, Recommended, Status, TrialRecord
from tune_speed.core.text import counted
from tune_speed.tracking import schema
from tune_speed.tracking.search_summary import Summary
from tune_speed.tracking.store import sqlite
from tune_speed.tracking.store.opening import explain
from tune_speed.tracking.store.store import Store
from tune_speed.tracking.store.uri import strip_secrets
from tune_speed.tracking.writer import descriptions
from tune_speed.tracking.writer.descriptions import SearchPlan
from tune_speed.tracking.writer.outbox import Outbox, is_permanent
from tune_speed.tracking.writer.outbox import deliver as deliver_outbox
from tune_speed.tracking.writer.runs import StudyRuns

FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_AT_THE_END_S = 0.5, 30.0, 1.0
# Events that come within this time go to the store together.
LINGER_S = 1.0
MOST_NAMED = 20
# Longest wait for the store at the end [s]; what it has not taken is in the ledger.
DELIVERY_S = 60.0
ESTIMATE = "estimate"

_log = logging.getLogger(__name__)


class Undelivered(NamedTuple):
    """A trial that MLflow does not show, or not completely."""

    trial_id: str
    reason: str


def names_of(undelivered: Sequence[Undelivered]) -> str:
    """Returns the trials in words, such as `2 trials, t0003 and t0004`."""
    names = [each.trial_id for each in undelivered]
    number = counted(len(names), "trial")
    if len(names) > MOST_NAMED:
        return f"{number}, {', '.join(names[:MOST_NAMED])} and more"
    return f"{number}, {' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}"


class _Link:
    """The store as it was found last: whether it answers, and when it is tried again."""

    def __init__(self, store: Store) -> None:
        self._store, self._file_id = store, store.file_id()
        self.trouble: str | None = None
        self.reported: str | None = None
        """The trouble that `news` told last."""
        self.had_trouble = False
        self.retry_at = 0.0
        self.pause_s = FIRST_PAUSE_S

    def replaced(self) -> Exception | None:
        """Returns the error if the file is another now: SQLite writes on to one without a name."""
        file, is_same = self._store.file, self._store.file_id() == self._file_id
        return None if file is None or is_same else sqlite.replaced(file)

    def failed(self, error: Exception) -> None:
        _log.debug("delivery to MLflow failed", exc_info=error)
        self.trouble, self.had_trouble = str(explain(error, self._store.uri)), True
        # Jitter keeps the searches that lost the same server from returning all at once.
        self.retry_at = time.monotonic() + self.pause_s * random.uniform(0.75, 1.25)
        self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)

    def analyze(self) -> None:
        if self._store.file is not None:
            sqlite.analyze(self._store.file)


@dataclass
class _End:
    """The end of a search: how its run ends, and until when the thread may deliver."""

    begun: threading.Event = field(default_factory=threading.Event)
    status: str = "FINISHED"
    deadline: float = 0.0
    is_written: bool = False

    @property
    def is_over(self) -> bool:
        return self.begun.is_set() and (self.is_written or time.monotonic() >= self.deadline)


class Tracker:
    """Writes one search to MLflow."""

    def __init__(
        self,
        store: Store,
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

        `study_tags` go to every run. `search_id` distinguishes two searches of one study; a resumed
        one has the same. `plan` is for descriptions.

        Raises: ServiceError or StorageError if the store does not take it within two minutes;
            ConfigError if the search `is_only` to be one of its name, and the store has another.
        """
        self._runs = StudyRuns.open(
            store,
            study=study,
            search_id=search_id,
            tags=study_tags,
            parent_kind=parent_kind,
            plan=plan,
            is_only=is_only,
        )
        self._link = _Link(store)
        self.expected: set[str] = set()
        """Trials that were announced and are not completely delivered."""
        self._refused: dict[str, str] = {}
        """Trials that cannot be delivered, and why."""
        self._linger_s, self._plan = linger_s, plan
        self._events: SimpleQueue[tuple[str, Callable[[], None]]] = SimpleQueue()
        self._outboxes: dict[str, Outbox] = {}
        self._records: Mapping[str, TrialRecord] = {}
        self._ledger: Sequence[str] | None = None
        """Trials of the ledger that are still to be compared with MLflow."""
        self._summary = Summary()
        self._end = _End()
        self._thread = threading.Thread(target=self._work, name="tune_speed-tracker", daemon=True)
        self._thread.start()

    @property
    def experiment_id(self) -> str:
        return self._runs.experiment_id

    @property
    def run_id(self) -> str:
        return self._runs.parent.run_id

    @property
    def trouble(self) -> str | None:
        """Why nothing can be delivered at the moment; None if all is well."""
        return self._link.trouble

    def news(self) -> tuple[str, ...]:
        """Returns a line where trouble has come, changed or gone since the last call."""
        trouble, reported = self.trouble, self._link.reported
        self._link.reported = trouble
        if trouble == reported:
            return ()
        if trouble is None:
            return ("MLflow answers again, and gets what it has missed",)
        return (f"trials go on, and their results wait in the study's ledger: {trouble}",)

    def trial_started(
        self, *, trial_id: str, params: Mapping[str, Any], recipe: Mapping[str, Any]
    ) -> None:
        now_ms = round(time.time() * 1000)

        def take() -> None:
            self.expected.add(trial_id)
            key, entries = (ESTIMATE, trial_id), schema.param_entries(recipe, params)
            self._outboxes[trial_id] = Outbox(key, now_ms, entries, tuple(params), is_new=True)

        self.expected.add(trial_id)
        self._events.put((trial_id, take))

    def trial_evaluated(self, *, trial_id: str, evaluation: Evaluation) -> None:
        def take() -> None:
            outbox = self._outboxes.get(trial_id)
            if outbox is not None and not outbox.has_ended:
                outbox.evaluations.append(evaluation)

        self._events.put((trial_id, take))

    def trial_finished(self, *, record: TrialRecord) -> None:
        trial_id = record.trial_id
        # Where the ledger has it, only its name waits: 24 kB less for each trial behind.
        held = None if trial_id in self._records else record

        def load() -> TrialRecord:
            return held or self._records[trial_id]

        def take() -> None:
            found = load()
            self._summary.add(found)
            outbox = self._outboxes.setdefault(trial_id, _outbox_of(found))
            outbox.take(found, load)

        self.expected.add(trial_id)
        self._events.put((trial_id, take))

    def trials_reclocked(self, trial_ids: Sequence[str]) -> None:
        """Queues finished trials whose times are others now, however they ended."""
        now_ms, changed = round(time.time() * 1000), set(trial_ids)

        def take() -> None:
            self._summary.forget_trials()
            misses = list[str]()
            for trial_id, record in self._records.items():
                self._summary.add(record)
                if trial_id not in changed or trial_id in self._outboxes:
                    continue  # One with an outbox is delivered as it is then.
                self.expected.add(trial_id)
                if record.status is Status.REACHED:
                    self._reclock(record, now_ms)
                else:
                    misses.append(trial_id)
            # Last, as no board lists them: a slow store may not take all that is left in time.
            for trial_id in misses:
                self._reclock(self._records[trial_id], now_ms)

        self._events.put(("", take))

    def _reclock(self, record: TrialRecord, now_ms: int) -> None:
        outbox = self._outboxes[record.trial_id] = _outbox_of(record)
        outbox.take(record, partial(self._records.__getitem__, record.trial_id))
        outbox.reclocked_ms = now_ms
        self._summary.retold(now_ms)

    def trial_interrupted(self, *, trial_id: str, reason: str) -> None:
        self._events.put((trial_id, lambda: self._interrupt(trial_id, reason)))

    def recommend(self, favourites: Sequence[Recommended]) -> None:
        """Queues what the search recommends, first of its favourites, where that has changed."""
        every = tuple(favourites)
        if every != self._summary.favourites:
            self._events.put(("", partial(self._summary.recommend, every)))

    def steered(self, tags: Mapping[str, str], done: Sequence[Sequence[str]]) -> None:
        """Queues what people changed: tags, and moments (UTC, ISO 8601) with lines."""

        def take() -> None:
            self._runs.retag(tags)
            self._summary.say(schema.study_tags(tags) | schema.pack_steered(done))

        self._events.put(("", take))

    def ended(self, **said: str) -> None:
        """Queues what is said at the end: `why_ended` early, `range_ends` of the best."""
        self._events.put(("", lambda: self._summary.say(schema.study_tags(said))))

    def reconcile(self, records: Mapping[str, TrialRecord]) -> None:
        """Makes MLflow show each of the ledger's records once, and nothing running that is not.

        Call it before the first trial starts. Returns at once; records are looked up one by one
        when they are delivered: those of 20,000 trials take 0.5 GB unpacked.
        """
        trial_ids, self._records = tuple(records), records

        def take() -> None:
            self._ledger = trial_ids

        self.expected.update(trial_ids)
        self._events.put(("", take))

    def close(self, *, timeout_s: float, interrupted: bool = False) -> tuple[Undelivered, ...]:
        """Delivers what it can within `timeout_s`; returns what the next `reconcile` must."""
        self._end.status = "KILLED" if interrupted else "FINISHED"
        self._end.deadline = time.monotonic() + timeout_s
        self._end.begun.set()
        self._link.retry_at = 0.0
        self._events.put(("", lambda: None))
        self._thread.join(timeout_s)
        if self._end.is_written:
            self._link.analyze()
        reason = self.trouble or "there was no time left"
        missing = dict.fromkeys(tuple(self.expected), reason) | self._refused
        return tuple(Undelivered(*item) for item in sorted(missing.items()))

    def _interrupt(self, trial_id: str, reason: str) -> None:
        outbox = self._outboxes.get(trial_id)
        if outbox is not None and not outbox.has_ended:
            outbox.interrupted = reason

    def _work(self) -> None:
        link = self._link
        while not self._end.is_over:
            # Read before the events: what is put after it comes in another round.
            is_last = self._end.begun.is_set()
            if is_last:
                link.retry_at = min(link.retry_at, time.monotonic() + LONGEST_PAUSE_AT_THE_END_S)
            self._gather()
            if is_last:
                for trial_id in self._outboxes:
                    self._interrupt(trial_id, "the search ended before the trial")
            if time.monotonic() >= link.retry_at:
                self._deliver(is_last=is_last)

    def _gather(self) -> None:
        """Waits for an event, or until it is time to try again, and takes all that there are."""
        has_work = self._end.begun.is_set() or self._ledger is not None or self._summary.is_new
        if has_work or any(outbox.is_due for outbox in self._outboxes.values()):
            wait_s = max(0.0, self._link.retry_at - time.monotonic())
        else:
            wait_s = None
        try:
            first = self._events.get(timeout=wait_s)
        except Empty:
            return
        # Events of one moment are delivered together; the end of a search does not linger.
        self._end.begun.wait(self._linger_s)
        self._take(first)
        self._take_queued()

    def _take_queued(self) -> None:
        for _ in range(self._events.qsize()):
            self._take(self._events.get())

    def _take(self, event: tuple[str, Callable[[], None]]) -> None:
        trial_id, take = event
        try:
            take()
        except Exception as error:
            # Such as a recipe that is no tree: it must not end the thread.
            _log.exception("trial %s cannot be tracked", trial_id)
            self._refused[trial_id] = f"{type(error).__name__}: {error}"

    def _deliver(self, *, is_last: bool) -> None:
        try:
            if replaced := self._link.replaced():
                self.expected.update(self._records)
                raise replaced
            self._reconcile()
            for trial_id in [t for t, outbox in self._outboxes.items() if outbox.is_due]:
                self._deliver_trial(trial_id)
                # What a slow store keeps waiting shrinks: the curve of a trial that ended is gone.
                self._take_queued()
            self._deliver_summary(is_last=is_last)
        except Exception as error:
            self._link.failed(error)
        else:
            self._link.trouble, self._link.pause_s = None, FIRST_PAUSE_S

    def _deliver_trial(self, trial_id: str) -> None:
        outbox = self._outboxes.pop(trial_id)
        try:
            refused = deliver_outbox(outbox, self._runs)
        except Exception as error:
            if not is_permanent(error):
                # At the end: another trial is tried first.
                self._outboxes[trial_id] = outbox
                raise
            refused = self._give_up(outbox, error)
        self._link.pause_s = FIRST_PAUSE_S
        self._refused.pop(trial_id, None)
        if refused is not None:
            self._refused[trial_id] = refused
        if outbox.has_ended or refused is not None:
            self.expected.discard(trial_id)
        else:
            self._outboxes[trial_id] = outbox

    def _give_up(self, outbox: Outbox, error: Exception) -> str:
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
        for trial_id in self._ledger:
            record = self._records[trial_id]
            self._summary.add(record)
            ref = known.get((record.kind, trial_id))
            if ref is not None and ref.is_complete:
                self.expected.discard(trial_id)
                if ref.clock not in ("", schema.clock_of(record)):
                    self._reclock(record, round(time.time() * 1000))
            elif trial_id not in self._outboxes:
                self._outboxes[trial_id] = _outbox_of(record)
                self._outboxes[trial_id].take(record, partial(self._records.__getitem__, trial_id))
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
                known = self._runs.known()
                # Of a certified trial's two runs, the search's.
                run_ids = {
                    of: ref.run_id for (kind, of), ref in known.items() if kind == "estimate"
                }
                tags = self._summary.tags(now=datetime.now(UTC), run_ids=run_ids)
                tags |= self._search_note() | dict(self._summary.said)
                self._runs.write(self._runs.parent, points=self._summary.points(), tags=tags)
                self._summary.is_new = False
            if is_last:
                if self._link.had_trouble:
                    # A request that the store took after we had given it up may have made a second
                    # run of a trial; finding all runs again deletes it.
                    self._runs.forget()
                    self._runs.known()
                self._runs.end(self._runs.parent, self._end.status)
        except Exception as error:
            if not is_permanent(error):
                raise
            _log.warning("the search's own run cannot be written: %s", error)
            self._summary.is_new = False
        self._end.is_written = is_last

    def _search_note(self) -> dict[str, str]:
        if self._plan is None:
            return {}
        statuses, best = self._summary.statuses(), self._summary.best
        ref = self._runs.known().get((best.kind, best.trial_id)) if best is not None else None
        link = f"#/experiments/{self._runs.experiment_id}/runs/{ref.run_id}" if ref else ""
        note = descriptions.search_note(self._plan, statuses=statuses, best=best, link=link)
        return {descriptions.NOTE: note}


def _outbox_of(record: TrialRecord) -> Outbox:
    start_ms = schema.time_ms(record.started_at) or round(time.time() * 1000)
    return Outbox((record.kind, record.trial_id), start_ms, None, tuple(record.params))


def deliver(
    store: Store,
    records: Sequence[TrialRecord],
    *,
    study: str,
    search_id: str,
    parent_kind: str = schema.SEARCH,
) -> tuple[Undelivered, ...]:
    """Delivers records of one workload; returns what was not taken. Raises: ServiceError."""
    tags = {
        "workload": records[0].workload_name,
        "workload_hash": records[0].workload_hash,
        "protocol_version": str(PROTOCOL_VERSION),
    }
    tracker = Tracker(
        store,
        study=study,
        study_tags=tags,
        search_id=search_id,
        parent_kind=parent_kind,
    )
    tracker.reconcile({record.trial_id: record for record in records})
    return tracker.close(timeout_s=DELIVERY_S)
