"""What `watch` says of a study at one moment: facts only, drawn by `watch_screen`."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tune_speed.core.forecast import Outlook
from tune_speed.core.records import Status
from tune_speed.core.text import moment_s
from tune_speed.reporting.study.view import (
    OpenTrial,
    StudyPart,
    StudyView,
    ViewedTrial,
    search_clock_s,
)
from tune_speed.tracking.reader.changes import SearchRun
from tune_speed.tracking.schema import PREFIX, unpack_steered

# A search that has written nothing for so long may be gone: trials are evaluated more often.
QUIET_S = 120.0
# Ended trials that are shown.
NUM_LAST = 8


class State(StrEnum):
    """State of a study."""

    RUNNING = "running"
    QUIET = "quiet"
    """A search has begun and not ended, but nobody writes."""
    ENDED = "ended"
    NOT_BEGUN = "not begun"


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """A study at one moment."""

    view: StudyView
    state: State
    quiet_s: float
    """Seconds for which nobody has written."""
    workload: str
    target: str
    mode: str
    planned: int | None
    """Trials in all; None where MLflow does not say."""
    counts: dict[Status, int]
    elapsed_s: float
    """Seconds in which a trial ran."""
    left_s: float | None
    """As the pace so far suggests, or the time budget says; None: not known, or nothing runs."""
    parts: tuple[StudyPart, ...]
    is_paused: bool = False
    steered: tuple[tuple[str, str], ...] = ()
    """What people changed about the search: moments (UTC, ISO 8601) and lines."""
    chance: float | None = None
    """Probability that the target is met in the time left; None: not known, or nothing is left."""
    goal: str = ""
    """The same in words; empty where the target was met."""
    why_ended: str = ""
    """Why the last search ended before its budget was used up; empty: it did not."""

    @property
    def num_finished(self) -> int:
        return len(self.view.trials)

    @property
    def last(self) -> tuple[ViewedTrial, ...]:
        """Those that ended last, the latest first."""
        return self.view.trials[: -NUM_LAST - 1 : -1]


def glance(
    view: StudyView, *, now_s: float | None = None, unchanged_s: float = math.inf
) -> StudyStatus:
    """`now_s`: seconds since 1970; `unchanged_s`: since the caller last saw a change."""
    now_s = time.time() if now_s is None else now_s
    # At least 0: the clock of the machine that writes may be ahead of this one's.
    quiet_s = max(0.0, min(unchanged_s, now_s - _last_written_s(view)))
    parts = view.parts
    counts = Counter(trial.record.status for trial in view.trials)
    planned, done, state = _planned(view.searches), len(view.trials), _state(view, quiet_s)
    # A search that may be gone is not taken to run on after it wrote last.
    elapsed_s = _elapsed_s(view, now_s - quiet_s if state is State.QUIET else now_s)
    left_s = None
    if state is State.RUNNING and planned is not None and done:
        left_s = max(0, planned - done) * elapsed_s / done
    if state is State.RUNNING and (ends_at := view.searches[-1].tags.get("ends_at")):
        budget_s = max(0.0, moment_s(ends_at) - now_s)
        left_s = budget_s if left_s is None else min(left_s, budget_s)
    ratio = (left_s or 0.0) / max(elapsed_s, 1e-9)
    is_best = bool(parts) and parts[0].target.seeks_best
    outlook = Outlook.of((t.record for t in parts[0].trials), parts[0].target) if parts else None
    tags = view.searches[-1].tags if view.searches else {}
    return StudyStatus(
        view=view,
        state=state,
        quiet_s=quiet_s,
        workload=parts[0].key.workload if parts else tags.get("workload", ""),
        target=parts[0].target.words if parts else tags.get("target", ""),
        mode=parts[0].mode if parts else tags.get("mode", ""),
        planned=planned,
        counts={status: counts[status] for status in Status if counts[status]},
        elapsed_s=elapsed_s,
        left_s=left_s,
        parts=parts,
        chance=outlook.chance(ratio) if outlook and ratio and not is_best else None,
        goal=outlook.words(ratio) if outlook and ratio else "",
        why_ended="" if view.is_running else tags.get("why_ended", ""),
        is_paused=view.is_running and bool(tags.get("paused")),
        steered=tuple(unpack_steered({f"{PREFIX}{name}": text for name, text in tags.items()})),
    )


def as_dict(seen: StudyStatus, *, trouble: str | None = None) -> dict[str, Any]:
    """Returns the facts for machines; `trouble`: why they are not fresh."""
    view = seen.view
    return {
        "study": view.study,
        "read_at": view.read_at,
        "trouble": trouble,
        "state": seen.state.value,
        "quiet_s": seen.quiet_s,
        "why_ended": seen.why_ended,
        "paused": seen.is_paused,
        "steered": [{"at": at, "line": line} for at, line in seen.steered],
        **{name: getattr(seen, name) for name in ("workload", "target", "mode", "planned")},
        "finished": seen.num_finished,
        "counts": {status.value: count for status, count in seen.counts.items()},
        "interrupted": view.interrupted,
        **{name: getattr(seen, name) for name in ("elapsed_s", "left_s", "chance")},
        "parts": [_part_dict(part) for part in seen.parts],
        "running": list(map(_open_trial, view.running)),
        "last": [_ended_dict(trial) for trial in seen.last],
        "url": view.url,
        "ui_command": view.ui_command,
    }


def _open_trial(trial: OpenTrial) -> dict[str, Any]:
    named = {name: trial.metrics.get(name) for name in ("accuracy", "train_s", "macro_f1")}
    known = {n: value for n, value in vars(trial).items() if n != "search_run_id"}
    return {**known, **named}


def fingerprint(view: StudyView) -> tuple[Any, ...]:
    running = tuple((t.run_id, t.train_s, *t.metrics.values()) for t in view.running)
    searches = tuple((s.run_id, s.updated_at, s.is_running) for s in view.searches)
    return len(view.trials), len(view.certified), view.interrupted, running, searches


def _state(view: StudyView, quiet_s: float) -> State:
    if not view.searches:
        return State.NOT_BEGUN
    if not view.is_running:
        return State.ENDED
    return State.QUIET if quiet_s > QUIET_S else State.RUNNING


def _planned(searches: Sequence[SearchRun]) -> int | None:
    numbers = [s.tags.get("trials", "") for s in searches if s.tags.get("kind") == "search"]
    if not numbers or not all(number.isdecimal() for number in numbers):
        return None
    return sum(map(int, numbers))


def _elapsed_s(view: StudyView, until_s: float) -> float:
    """Returns how long trials ran [s]; those without an outcome are taken to run `until_s`."""
    timed = [t for t in view.trials if t.record.started_at and t.record.finished_at]
    until_last_s = max(search_clock_s(timed).values(), default=0.0)
    if not view.running:
        return until_last_s
    # A trial that was taken up again began long ago; the search has been written to since then.
    first_s = min(moment_s(trial.started_at) for trial in view.running)
    written = [t.record.finished_at for t in timed] + [s.updated_at for s in view.searches]
    since_s = max([first_s, *map(moment_s, written)])
    return until_last_s + max(0.0, until_s - since_s)


def _last_written_s(view: StudyView) -> float:
    # MLflow does not say when a metric was logged: a running trial's is taken from its own clock.
    finished = [t.record.finished_at for t in (*view.trials, *view.certified)]
    texts = [*finished, *(search.updated_at for search in view.searches)]
    moments = [moment_s(text) for text in texts if text]
    moments += [moment_s(t.started_at) + (t.train_s or 0.0) for t in view.running]
    return max(moments, default=0.0)


def _part_dict(part: StudyPart) -> dict[str, Any]:
    times = ((t.record.trial_id, t.record.time_to_target_s) for t in part.records)
    return {
        **{name: value for name, value in part.key._asdict().items() if name != "kind"},
        "target": part.target.words,
        "mode": part.mode,
        "certified": len(part.confirmed),
        "best": _ended_dict(part.leader) if part.leader else None,
        "records": [{"trial_id": name, "time_to_target_s": time_s} for name, time_s in times],
    }


def _ended_dict(trial: ViewedTrial) -> dict[str, Any]:
    record = trial.record
    return {
        "trial_id": record.trial_id,
        "run_id": trial.run_id,
        "url": trial.url,
        "status": record.status.value,
        "time_to_target_s": record.time_to_target_s,
        "stop_reason": str(record.stop_reason),
        "params": record.params,
        "finished_at": record.finished_at,
    }
