"""Finds trials that hang: a watchdog in each trial's process, heartbeat time-outs in the driver.

A trial that hangs ends itself (`Watchdog`) and says why. A process that is frozen, or whose
interpreter lock a library holds, can do neither: it sends no heartbeat, and the driver kills it.

Reports of its process to the driver have, of a curve, only what the driver has not seen:

| field    | meaning                                                                  |
|----------|--------------------------------------------------------------------------|
| `record` | the record so far as JSON, without the evaluations that were sent before |
| `before` | how many these are                                                       |
| `end`    | `finished`: this is the trial's record; `hung`: likewise, and the        |
|          | process is about to end; `interrupted`, `stopped`: the trial has ended   |
| `done`   | whether the process can take another trial                               |

Without `record` and `end` it is a heartbeat. Ray delivers reports in order, each once.
"""

# Both measure time in looks, each of which counts a few seconds at most, not by a clock. A process
# that was stopped from outside (SIGSTOP, a suspended machine) has all its time left when it
# continues: it is not the trial's fault, and a frozen driver cannot have received a heartbeat.

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import psutil

from tune_speed.core.errors import TuneSpeedError, readable
from tune_speed.core.records import Evaluation, TrialRecord
from tune_speed.runtime import heartbeat

if TYPE_CHECKING:
    from tune_speed.training.distributed.supervisor import RankChannel

LOOKS = 20
"""How often the watchdog looks within the time that a trial may show no sign of life."""
# How much longer than a trial may hang a process may send no heartbeat [s].
MARGIN_S = 20.0
# How much longer before the first one [s]: a busy node is slow to start Python and import torch.
START_S = 100.0
LOOK_EVERY_S = 1.0
# Time for the record of a trial that hangs to arrive, before its process ends [s].
LEAVE_S = 30.0
# What a look counts at most [s].
LONGEST_LOOK_S = 5.0


class Watchdog:
    """A thread that measures how long its own process has shown no sign of life."""

    def __init__(self, *, on_hang: Callable[[str, float], None]) -> None:
        """`on_hang` is called once, with all threads' stacks and the quiet seconds."""
        self._on_hang = on_hang
        self._limit_s: float | None = None
        self._beats, self._quiet_s = heartbeat.beats(), 0.0
        self._changed = threading.Event()
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def watch(self, *, limit_s: float, start_s: float = START_S) -> None:
        """Starts again, at `limit_s` without a sign of life; the first may be `start_s` later."""
        self._beats, self._quiet_s, self._limit_s = heartbeat.beats(), -start_s, limit_s
        self._changed.set()

    def rest(self) -> None:
        self._limit_s = None

    def _run(self) -> None:
        while True:
            limit_s = self._limit_s
            pause_s = LONGEST_LOOK_S if limit_s is None else min(limit_s / LOOKS, LONGEST_LOOK_S)
            if self._changed.wait(None if limit_s is None else pause_s):
                self._changed.clear()
                continue
            beats, limit_s = heartbeat.beats(), self._limit_s
            self._quiet_s = self._quiet_s + pause_s if beats == self._beats else 0.0
            self._beats = beats
            if limit_s is not None and self._quiet_s > limit_s - pause_s / 2:
                self._limit_s = None
                self._on_hang(stacks(), self._quiet_s)


def stacks() -> str:
    """Returns where each thread of this process is, as tracebacks, the training thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {i: "".join(traceback.format_stack(f)) for i, f in sys._current_frames().items()}
    texts = [f"Thread {names.get(i, 'unknown')} ({i}):\n{where}" for i, where in frames.items()]
    return "\n".join(sorted(texts, key=lambda text: not text.startswith("Thread training")))


def leave() -> None:
    """Ends this process at once, whatever its threads do, and before it all that it started."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # It is gone already.
            child.kill()
    os._exit(1)


class TrialHung(TuneSpeedError):
    """A rank takes no step; the message holds the stacks of its threads."""


def watch_rank(line: "RankChannel", *, limit_s: float) -> None:
    """Watches this process, in which a rank works: where it hangs, its supervisor gets to know."""
    from tune_speed.training.distributed.supervisor import Ended

    def on_hang(stacks: str, quiet_s: float) -> None:
        error = TrialHung(f"no step for {quiet_s:.0f} s\n{readable(stacks)}")
        line.tell(Ended(rank=0, error=error))
        time.sleep(LEAVE_S)
        leave()

    Watchdog(on_hang=on_hang).watch(limit_s=limit_s)


class OwnTime:
    """Time in which this process ran and could receive heartbeats."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._looked_s = now, now()
        self.passed_s = 0.0

    def is_time_to_look(self) -> bool:
        """Returns whether the last look is long enough ago, and if so counts the time since."""
        since_s = self._now() - self._looked_s
        if since_s < LOOK_EVERY_S:
            return False
        self.passed_s += min(since_s, LONGEST_LOOK_S)
        self._looked_s += since_s
        return True


How = Literal["finished", "hung", "interrupted", "stopped"]


def running_report(record: TrialRecord, *, before: int) -> dict[str, Any]:
    """Returns the report of a running trial of which `before` evaluations were sent."""
    short = _with_curve(record, record.runs[-1].evaluations[before:])
    return {"record": short.model_dump_json(), "before": before}


def end_report(how: How, record: TrialRecord | None = None) -> dict[str, Any]:
    report: dict[str, Any] = {"end": how, "done": how != "hung"}
    if record is not None:
        report |= {"record": record.model_dump_json(), "before": 0}
    return report


def received(report: Mapping[str, Any], newest: TrialRecord | None = None) -> TrialRecord:
    """Returns the whole record of a report; `newest` is that of the report before it."""
    record, before = TrialRecord.model_validate_json(report["record"]), report["before"]
    known = () if newest is None else newest.runs[-1].evaluations
    assert before <= len(known), "a report was lost"
    return _with_curve(record, (*known[:before], *record.runs[-1].evaluations))


def _with_curve(record: TrialRecord, evaluations: Sequence[Evaluation]) -> TrialRecord:
    run = record.runs[-1].model_copy(update={"evaluations": tuple(evaluations)})
    return record.model_copy(update={"runs": (*record.runs[:-1], run)})
