"""A training function's own steps, timed as it takes them while all others on the device pause.

From one `run.step()` to the next counts the isolated step time. As it passed counts what comes
before the third step, a stretch without a step, what is far longer than a step after a stop (a
loader begins), and on a CPU what comes after the last step before a stop: a GPU has steps queued.
"""

import math
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from tune_speed.core.records import StepTime
from tune_speed.core.stats import mean_interval
from tune_speed.custom.checkpoints import CountedSteps
from tune_speed.runtime import step_timer
from tune_speed.runtime.clock import Clock, mean_power_w
from tune_speed.runtime.process import MOST_DELAYED
from tune_speed.runtime.reference_step import ReferenceStep
from tune_speed.runtime.sharing import Sharing
from tune_speed.runtime.turnstile import Measurement
from tune_speed.training.trial import utc_now
from tune_speed.training.warm_up import told

FIRST_STEPS = 2
LEAST_BLOCKS = 3
"""Of long steps; fewer say nothing of their spread."""
MOST_TURNS = 30
"""For one window; an evaluation ends a turn."""
AGAIN_S = 30.0
"""On the training clock to the next window [s]; twice as long after each."""


@dataclass
class _Window:
    """Blocks of steps, each between two waits for the device; of one turn or of several."""

    times_s: list[float] = field(default_factory=list)
    """Of blocks, in seconds per step."""
    total_s: float = 0.0
    num_steps: int = 0
    references_s: list[float] = field(default_factory=list)
    disturbed: str = ""
    powers_w: list[float | None] = field(default_factory=list)

    def add(self, block_s: float, num_steps: int) -> None:
        self.times_s.append(block_s / num_steps)
        self.total_s, self.num_steps = self.total_s + block_s, self.num_steps + num_steps

    def joined(self, turn: "_Window") -> "_Window":
        return _Window(
            self.times_s + turn.times_s,
            self.total_s + turn.total_s,
            self.num_steps + turn.num_steps,
            self.references_s + turn.references_s,
            turn.disturbed or self.disturbed,
            self.powers_w + turn.powers_w,
        )

    @property
    def power_w(self) -> float | None:
        """Mean power of its turns [W]; None: that of one is not known, or strangers took some."""
        known = [power_w for power_w in self.powers_w if power_w is not None]
        is_known = len(known) == len(self.powers_w) > 0 and not self.disturbed
        return statistics.fmean(known) if is_known else None

    def is_enough(self, *, at_last: bool = False) -> bool:
        """Returns whether more blocks would say little; `at_last`: whether these say anything."""
        num_blocks = len(self.times_s)
        if self.total_s >= step_timer.LONGEST_S:
            return num_blocks >= LEAST_BLOCKS
        if num_blocks < step_timer.MIN_BLOCKS or at_last:
            return num_blocks >= step_timer.MIN_BLOCKS
        low, middle, high = self.interval()
        is_precise = high - low <= 2 * step_timer.PRECISION * middle
        return self.total_s >= step_timer.SHORTEST_S and is_precise

    def interval(self) -> tuple[float, float, float]:
        """Returns a step's mean [s] between the ends of Student's 95 % interval."""
        found = mean_interval(self.times_s)
        assert found.ends is not None
        return max(0.0, found.ends[0]), found.value, found.ends[1]


@dataclass
class _Count:
    """What the training clock is made of: steps, and what counts as it passed."""

    steps: int = 0
    other_s: float = 0.0
    passed_s: float = 0.0
    marks: list[tuple[int, float]] = field(default_factory=list)
    num_taken: int = 0
    """Steps of this process, those that count as they passed among them."""
    last_s: float = 0.0
    """The training clock at the last step or stop [s]."""
    is_first: bool = True
    """Whether the next step is the first after a stop."""

    def add(self, now_s: float) -> float:
        """Counts a step that ended now, and returns how long it took [s]."""
        took_s = now_s - self.last_s
        mean_s = self.passed_s / max(1, self.steps)
        is_longer = self.is_first and took_s > step_timer.HELD_UP * mean_s
        if self.num_taken < FIRST_STEPS or is_longer:
            self.other_s += took_s
        else:
            self.steps += 1
            self.passed_s += took_s
        self.num_taken += 1
        self.last_s = now_s
        self.is_first = False
        return took_s

    def stop(self, now_s: float, *, counts: bool) -> None:
        """Ends a stretch of training; `counts`: what came after its last step."""
        if counts or self.is_first:
            self.other_s += now_s - self.last_s
        self.last_s = now_s
        self.is_first = True

    def resume(self, earlier: CountedSteps, now_s: float) -> None:
        self.steps = earlier.steps
        self.other_s = earlier.other_s
        self.passed_s = earlier.passed_s
        self.marks = list(earlier.marks)
        self.last_s = now_s


class _Reading(NamedTuple):
    """What is read around a turn."""

    at_s: float
    delayed_s: float
    """How long this thread has waited for a core so far [s]."""
    energy_j: float | None


@dataclass
class _Turn:
    """Blocks of steps while all others on the device are paused."""

    measurement: Measurement
    reference: ReferenceStep
    began: _Reading
    window: _Window = field(default_factory=_Window)
    size: int = 0
    """Steps of a block; 0: the first step has yet to say how long steps are."""
    in_block: int = 0
    block_began_s: float = 0.0

    def window_at(self, ended: _Reading) -> _Window:
        """Returns what was measured, as the turn ends."""
        took_s = ended.at_s - self.began.at_s
        self.window.powers_w = [mean_power_w(self.began.energy_j, ended.energy_j, took_s)]
        self.window.references_s = self.reference.times_s
        share = (ended.delayed_s - self.began.delayed_s) / max(took_s, 1e-6)
        if share > MOST_DELAYED:
            self.window.disturbed = f"it waited {share:.0%} of the time for a core"
        return self.window


class StepKind(NamedTuple):
    """What the steps of a run have in common."""

    key: str
    place: str
    """What they drift with."""
    device_type: str


class IsolatedSteps:
    """Counts the steps of one run, and times them on a device that it shares."""

    def __init__(
        self,
        kind: StepKind,
        *,
        clock: Clock,
        sharing: Sharing,
        reference: ReferenceStep | None,
        delayed_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Begins before the first step. Without a reference step no step is timed."""
        self._kind, self._clock, self._sharing = kind, clock, sharing
        self._reference, self._delayed_s = reference, delayed_s
        self._held = ExitStack()
        self.step_time: StepTime | None = None
        self._count = _Count()
        self._turn: _Turn | None = None
        self._window, self._num_turns = _Window(), 0
        self._due_s, self._gap_s = step_timer.WARM_UP_S, AGAIN_S

    @property
    def train_s(self) -> float | None:
        """The training clock up to the last step or stop [s]; None: no step could be timed yet."""
        count = self._count
        return None if self.step_time is None else self._at(count.steps, count.other_s)

    def mark(self) -> None:
        """Remembers where the run is, at an evaluation."""
        self._count.marks.append((self._count.steps, self._count.other_s))

    def retold(self) -> list[float]:
        """Returns the training clock [s] at each evaluation, by the present step time."""
        return [self._at(*mark) for mark in self._count.marks]

    def taken(self) -> bool:
        """Counts a step that ended; returns whether all times are others now."""
        now_s = self._clock.elapsed("train_s")
        took_s = self._count.add(now_s)
        if self._turn is not None:
            return self._time(self._turn)
        is_warm = self._count.num_taken >= FIRST_STEPS and took_s < step_timer.LONGEST_S
        if self._reference is not None and is_warm and now_s >= self._due_s:
            self._begin_turn(self._reference)
        return False

    def stopped(self) -> bool:
        """Ends a stretch of training, after its clock; returns whether all times are others now."""
        is_cpu = self._kind.device_type == "cpu"
        self._count.stop(self._clock.elapsed("train_s"), counts=is_cpu)
        return self._turn is not None and self._end_turn(self._turn)

    def close(self) -> None:
        """Lets the others continue."""
        self._held.close()

    def counted(self) -> CountedSteps:
        """Returns what a process that resumes the run must know."""
        return CountedSteps(
            steps=self._count.steps,
            other_s=self._count.other_s,
            passed_s=self._count.passed_s,
            marks=tuple(self._count.marks),
            step_time=self.step_time,
        )

    def resume(self, earlier: CountedSteps) -> None:
        """Continues from another process's count; the clock has been resumed."""
        self.step_time = earlier.step_time
        self._count.resume(earlier, self._clock.elapsed("train_s"))
        self._due_s = self._count.last_s + step_timer.WARM_UP_S

    def _at(self, steps: int, other_s: float) -> float:
        assert self.step_time is not None
        return other_s + steps * self.step_time.step_s

    def _begin_turn(self, reference: ReferenceStep) -> None:
        measuring = self._sharing.turnstile.measuring(patience_s=step_timer.MEASURE_WITHIN_S)
        self._clock.switch("measuring_s")
        measurement = self._held.enter_context(measuring)
        if measurement is None:
            self._held.close()
            self._plan()
        else:
            reference.begin()
            self._turn = _Turn(measurement, reference, self._reading())
        self._begin_block()

    def _begin_block(self) -> None:
        self._clock.switch("train_s")
        if self._turn is not None:
            self._turn.in_block = 0
            self._turn.block_began_s = self._working_s()

    def _working_s(self) -> float:
        """Returns the training clock without what this thread waited for a core [s]."""
        return self._clock.elapsed("train_s") - self._delayed_s()

    def _reading(self) -> _Reading:
        now_s = self._clock.elapsed("train_s") + self._clock.elapsed("measuring_s")
        return _Reading(now_s, self._delayed_s(), self._sharing.energy_j())

    def _time(self, turn: _Turn) -> bool:
        turn.in_block += 1
        if turn.in_block < turn.size:
            return False
        self._clock.switch("measuring_s")
        took_s = max(0.0, self._working_s() - turn.block_began_s)
        # The first step was made ready while others were at work; it says how long steps are.
        if turn.size:
            turn.window.add(took_s, turn.in_block)
        step_s = max(took_s / turn.in_block, 1e-6)
        turn.size = math.ceil(step_timer.BLOCK_S[self._kind.device_type] / step_s)
        turn.reference.catch_up()
        is_over = turn.measurement.left_s <= turn.size * step_s
        is_over = is_over or self._window.joined(turn.window).is_enough()
        is_other = is_over and self._end_turn(turn)
        self._begin_block()
        return is_other

    def _end_turn(self, turn: _Turn) -> bool:
        ended = self._reading()
        self._held.close()
        self._turn = None
        is_isolated = turn.measurement.is_isolated
        if is_isolated:
            self._window = self._window.joined(turn.window_at(ended))
        # A window may be of many turns, but not of many that did not stay isolated.
        self._num_turns += 1 if is_isolated else MOST_TURNS // step_timer.MAX_TURNS
        is_last = self._num_turns >= MOST_TURNS
        is_complete = self._window.is_enough(at_last=is_last)
        if is_complete:
            self._learn(self._window)
        if is_complete or is_last:
            self._plan()
        return is_complete

    def _learn(self, found: _Window) -> None:
        low, middle, high = found.interval()
        window = StepTime(
            key=self._kind.key,
            step_s=middle,
            low_s=low,
            high_s=high,
            num_steps=found.num_steps,
            measured_in=self._sharing.label,
            measured_at=utc_now(),
            place=self._kind.place,
            reference_s=step_timer.steady_interval(found.references_s)[1],
            disturbed=found.disturbed,
            power_w=found.power_w,
        )
        self._sharing.windows.append(window)
        self.step_time = told(window, self.step_time, self._sharing)

    def _plan(self) -> None:
        is_soon = bool(self._window.disturbed) and len(self._sharing.windows) < step_timer.MAX_TURNS
        gap_s = step_timer.WARM_UP_S if is_soon else self._gap_s
        self._due_s = self._clock.elapsed("train_s") + gap_s
        self._gap_s *= 1 if is_soon else 2
        self._window, self._num_turns = _Window(), 0
