"""How long one optimizer step takes, and how sure that is after so many of them."""

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import NamedTuple, Protocol

from tune_speed.core.stats import mean_interval, student_quantile
from tune_speed.runtime.clock import Clock, mean_power_w
from tune_speed.runtime.process import MOST_DELAYED
from tune_speed.runtime.reference_step import ReferenceStep
from tune_speed.runtime.turnstile import TURN_S, Turnstile

# Steps are taken for so long [s] before the turn to time them is requested.
WARM_UP_S = 0.2
# Longest wait for the turn [s], or as long as others would pause; then the run continues without.
MEASURE_WITHIN_S = 10.0
MOST_SLOWED = 4.0
"""Steps among co-tenants take up to so many times as long as alone, at a guess."""
MARGIN_S = 0.1
"""Left of a turn when its last long step is to end [s]."""
MAX_TURNS = 3
"""A measurement that was disturbed or did not stay isolated is repeated, so many in all."""
# Each block ends with a wait for the device, after which a GPU is idle until the host has launched
# its next kernels: a few tenths of a millisecond, which is 3 to 6 % of 10 ms.
BLOCK_S = {"cpu": 0.01, "cuda": 0.1}
"""Steps are timed in blocks of at least so long [s], by type of device."""
SHORT_EPOCH_S = 0.1
"""Epochs this short are blocks themselves: ends of epochs, with ragged steps, weigh in them."""
PRECISION = 0.03
"""Half the 95 % interval of the mean that is sought, as a share of the mean."""
SHORTEST_S, LONGEST_S = 0.3, 1.0
"""Timing takes as long at least, since blocks that follow one another are alike where a machine's
speed drifts; and it ends by then, as precise or not, if there are two blocks at least [s]."""
MIN_BLOCKS = 6
"""Blocks from which on their spread says how precise the mean is."""
HELD_UP = 3.0
"""Blocks of more than so many medians were held up from outside, and are left out; but where chance
decides what a step costs, such as with stochastic depth at a survival of 0.1."""

TakeStep = Callable[[], int]
"""Does one optimizer step and returns its number of samples."""


class Timed(NamedTuple):
    """Seconds of one step, that is of `samples_per_step` samples."""

    step_s: float
    """Mean over blocks [s]."""
    low_s: float
    high_s: float
    """Ends of its 95 % interval [s]; of a single block, the mean itself."""
    num_steps: int
    reference_s: float | None = None
    """Mean of the reference steps beside them [s]; None: there was none."""
    disturbed: str = ""
    """What else was at work, in words; empty: nothing that could be seen."""
    power_w: float | None = None
    """Mean power of the device meanwhile [W]; None: not known, or not of these steps alone."""


class Turn(Protocol):
    """A turn to measure, see `turnstile.Measurement`."""

    @property
    def left_s(self) -> float:
        """Seconds until others continue regardless."""

    @property
    def is_isolated(self) -> bool:
        """Whether all who take part were paused."""


class Turns(Protocol):
    """What gives turns: the turnstile of one device, or of several together."""

    longest_pause_s: float

    def measuring(
        self, *, patience_s: float, needs_s: float
    ) -> AbstractContextManager[Turn | None]: ...


class Steps(NamedTuple):
    """The steps to be timed."""

    take: TakeStep
    samples_per_step: int
    num_train: int
    """Samples of an epoch."""
    block_s: float
    """Least length of a block [s]."""
    period: int = 1
    """Steps after which their cost repeats."""
    is_even: bool = True
    """Whether chance does not decide what a step costs."""


class Meters(NamedTuple):
    """What is read while steps are timed."""

    synchronize: Callable[[], None]
    now: Callable[[], float]
    reference: ReferenceStep | None = None
    """Steps that are taken between blocks."""
    delayed_s: Callable[[], float] = lambda: 0.0
    """How long this thread has waited for a core; that is no time of a step."""
    strangers: Callable[[float], str] = lambda for_s: ""
    """What else used the device for so many seconds up to now, in words."""
    energy_j: Callable[[], float | None] = lambda: None
    """The energy that the device has used [J]."""


def isolated_time(
    steps: Steps,
    meters: Meters,
    *,
    clock: Clock,
    turnstile: Turns,
    on_note: Callable[[str], None] = lambda note: None,
) -> Timed | None:
    """Returns the time of a step while all co-tenants of the device are paused.

    None where they could not be paused, or a step takes longer than they would wait, which
    `on_note` hears. A window in which strangers were at work is repeated; of disturbed ones the
    least disturbed counts. A window of long steps may be made of several turns. The power of an
    undisturbed window includes that of its reference steps.
    """
    now, delayed_s = meters.now, meters.delayed_s
    with clock.span("compile_s"):
        step_s = warm_up(steps.take, limit_s=WARM_UP_S, synchronize=meters.synchronize, now=now)
    longest_s = turnstile.longest_pause_s
    if step_s > MOST_SLOWED * longest_s:
        on_note(_too_long(step_s, longest_s))
        return None
    is_long = 3 * step_s > TURN_S
    needs_s = max(2 * step_s * is_long, step_s + _over_period_s(steps.period, step_s), TURN_S)
    needs_s = min(needs_s, max(TURN_S, longest_s / 2))
    windows, singles = list[tuple[float, Timed]](), list[tuple[float, Timed]]()
    with clock.span("measuring_s"):
        for _ in range(MAX_TURNS):
            patience_s = max(MEASURE_WITHIN_S, longest_s)
            with turnstile.measuring(patience_s=patience_s, needs_s=needs_s) as turn:
                if turn is None:
                    break
                # What was made ready while others were at work, which weighs little in long steps.
                if not is_long:
                    steps.take()
                before_s, began_s, began_j = delayed_s(), now(), meters.energy_j()
                limit_s = turn.left_s - (MARGIN_S if is_long else step_s)
                timed = time_steps(steps, meters, step_s=step_s, limit_s=limit_s)
                took_s = max(now() - began_s, 1e-9)
                timed = timed._replace(power_w=mean_power_w(began_j, meters.energy_j(), took_s))
                share, seen = (delayed_s() - before_s) / took_s, meters.strangers(took_s)
            if not turn.is_isolated:
                if is_long and timed.num_steps == 1 and turn.left_s == 0:
                    on_note(_too_long(timed.step_s, longest_s))
                    break
                continue
            if is_long and timed.num_steps == 1:
                singles.append((share, timed))
                if len(singles) == 1:
                    continue
                share, timed = _joined(singles)
            if share <= MOST_DELAYED and not seen:
                return timed
            why = seen or f"it waited {share:.0%} of the time for a core"
            windows.append((share, timed._replace(disturbed=why, power_w=None)))
    return min(windows)[1] if windows else None


def _too_long(step_s: float, longest_s: float) -> str:
    return (
        f"a step takes {step_s:.1f} s, too long to time it while co-tenants pause, which they do"
        f" for {longest_s:g} s at most (search.longest_pause)"
    )


def _joined(singles: list[tuple[float, Timed]]) -> tuple[float, Timed]:
    low, middle, high = steady_interval([timed.step_s for _, timed in singles])
    references = [timed.reference_s for _, timed in singles if timed.reference_s is not None]
    reference_s = statistics.fmean(references) if references else None
    powers = [timed.power_w for _, timed in singles if timed.power_w is not None]
    power_w = statistics.fmean(powers) if len(powers) == len(singles) else None
    joined = Timed(middle, low, high, len(singles), reference_s, power_w=power_w)
    return max(singles)[0], joined


def take_all(
    steps: Iterator[object], num_steps: int, *, block_s: float, clock: Clock, turnstile: Turnstile
) -> float:
    """Takes steps while `train_s` runs; returns what it counted beyond their isolated time [s].

    Those that fit into one turn give the time of the others; the first, which chooses kernels,
    counts as it is. 0.0 where nobody could be paused. `steps` may end early.
    """
    clock.switch("measuring_s")
    with turnstile.measuring(patience_s=MEASURE_WITHIN_S) as turn:
        num_timed, ends_s = 0, [0.0]
        clock.switch("train_s")
        began_s = clock.elapsed("train_s")
        while turn is not None and num_timed < num_steps:
            took_s, block = ends_s[-1] - ends_s[-2] if num_timed else 0.0, 1
            if took_s >= turn.left_s or (num_timed > 1 and ends_s[-1] >= LONGEST_S):
                break
            if num_timed > 1:
                block = math.ceil(block_s * num_timed / max(ends_s[-1], 1e-6))
            num_taken = sum(1 for _ in islice(steps, min(block, num_steps - num_timed)))
            if not num_taken:
                break
            num_timed += num_taken
            clock.switch("train_s")
            ends_s.append(clock.elapsed("train_s") - began_s)
        clock.switch("measuring_s")
    clock.switch("train_s")
    num_left = 0
    for _ in islice(steps, num_steps - num_timed):
        num_left += 1
        clock.let_others_measure()
    clock.switch("train_s")
    if turn is None or not turn.is_isolated or num_timed < 2:
        return 0.0
    step_s = (ends_s[-1] - ends_s[1]) / (num_timed - 1)
    return clock.elapsed("train_s") - began_s - ends_s[-1] - num_left * step_s


def warm_up(
    take_step: TakeStep,
    *,
    limit_s: float,
    synchronize: Callable[[], None],
    now: Callable[[], float],
) -> float:
    """Takes steps until `limit_s` passed, at least two; returns the seconds of the last."""
    # The first steps of a kind choose kernels and fill caches, and are slower than later ones.
    began_s, last_s, num_steps = now(), 0.0, 0
    while num_steps < 2 or now() - began_s + last_s < limit_s:
        step_began_s = now()
        take_step()
        synchronize()
        num_steps, last_s = num_steps + 1, now() - step_began_s
    return last_s


def time_steps(steps: Steps, meters: Meters, *, step_s: float, limit_s: float) -> Timed:
    """Times steps of the real pipeline until their mean is precise, or `limit_s` is used up.

    The mean, not the median, which does not see what is done at every fifth step, is over blocks of
    steps, as seconds per sample, so that a ragged step counts by its samples; its interval is
    Student's. Steps may be left queued on the device. A block spans whole periods if two of them
    fit into the time; of a longer one the mean is that over the places in a period. `step_s` is
    rough. No block but the first is begun that would not end in time: two blocks, or a period, that
    fit into `limit_s` may take longer than `LONGEST_S`, more may not.
    """
    samples_per_step, num_train, period = steps.samples_per_step, steps.num_train, steps.period
    block_s, take_step = steps.block_s, steps.take
    now, delayed_s, synchronize = meters.now, meters.delayed_s, meters.synchronize
    reference = meters.reference
    over_s = _over_period_s(period, step_s)
    usual_s, places = min(limit_s, LONGEST_S), 1
    if 0 < over_s <= limit_s:
        usual_s, places, block_s = max(usual_s, over_s), period, 0.0
    held_up = HELD_UP if steps.is_even and places == 1 else math.inf
    steps_in_epoch = math.ceil(num_train / samples_per_step)
    is_short = places == 1 and step_s * steps_in_epoch <= SHORT_EPOCH_S
    unit_steps, unit_samples = (steps_in_epoch, num_train) if is_short else (1, samples_per_step)
    block_samples = unit_samples * _units(unit_steps, step_s, block_s, period, limit_s=usual_s)
    synchronize()
    if reference is not None:
        reference.begin()
    began_s = now()
    per_sample, num_steps, longest_s = list[float](), 0, 0.0
    while True:
        delay_s, block_began_s, samples = delayed_s(), now(), 0
        while samples < block_samples:
            samples += take_step()
            num_steps += 1
        synchronize()
        block_took_s = now() - block_began_s
        per_sample.append(max(0.0, block_took_s - delayed_s() + delay_s) / samples)
        if reference is not None:
            reference.catch_up()
        ended_s = now()
        took_s, longest_s = ended_s - began_s, max(longest_s, ended_s - block_began_s)
        end_s = usual_s if len(per_sample) > places else limit_s
        low, middle, high = _interval_over(places, per_sample, held_up)
        is_enough = took_s >= SHORTEST_S and len(per_sample) - places >= MIN_BLOCKS - 1
        is_precise = is_enough and high - low <= 2 * PRECISION * middle
        if is_precise or took_s + longest_s >= end_s:
            break
    references = reference.times_s if reference is not None else []
    return Timed(
        step_s=samples_per_step * middle,
        low_s=samples_per_step * low,
        high_s=samples_per_step * high,
        num_steps=num_steps,
        reference_s=steady_interval(references)[1] if references else None,
    )


def _units(unit: int, step_s: float, block_s: float, period: int, *, limit_s: float) -> int:
    """Returns how many units, of so many steps, make a block of `block_s`, in whole periods."""
    count = max(1, math.ceil(block_s / max(unit * step_s, 1e-6)))
    repeats_after = period // math.gcd(period, unit)
    spanning = repeats_after * math.ceil(count / repeats_after)
    return spanning if 2 * spanning * unit * step_s < limit_s else count


def _over_period_s(period: int, step_s: float) -> float:
    return (
        (period + MIN_BLOCKS) * step_s if period > 1 and 2 * period * step_s >= LONGEST_S else 0.0
    )


def _interval_over(places: int, values: list[float], held_up: float) -> tuple[float, float, float]:
    """Returns the mean over the places in a period, between the ends of its 95 % interval.

    m = Σ mean at place / k, its variance s² Σ 1/n at place / k², s² that within places, of n - k
    degrees of freedom. Without a whole period, and for k = 1, it is the mean of all.
    """
    extra = len(values) - places
    if places == 1 or extra < 1:
        return steady_interval(values, held_up)
    groups = [values[place::places] for place in range(places)]
    squares = sum(statistics.pvariance(group) * len(group) for group in groups)
    variance = squares / extra * sum(1 / len(group) for group in groups) / places**2
    mean = statistics.fmean(map(statistics.fmean, groups))
    half = student_quantile(extra) * math.sqrt(variance)
    return max(0.0, mean - half), mean, mean + half


def steady_interval(values: list[float], held_up: float = HELD_UP) -> tuple[float, float, float]:
    """Returns the mean between the ends of Student's 95 % interval, without what was held up."""
    longest = held_up * statistics.median(values)
    found = mean_interval([value for value in values if value <= longest])
    low, high = found.ends or (found.value, found.value)
    return max(0.0, low), found.value, high
