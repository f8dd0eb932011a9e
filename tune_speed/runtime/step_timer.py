"""How long one optimizer step takes, and how sure that is after so many of them."""

import math
import statistics
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from tune_speed.runtime.clock import Clock
from tune_speed.runtime.turnstile import Turnstile

# Steps are taken for so long [s] before the turn to time them is requested.
WARM_UP_S = 0.2
# Longest wait for the turn [s]; then the run continues without.
MEASURE_WITHIN_S = 10.0
MAX_TURNS = 3
"""A measurement that did not stay isolated is repeated, so many in all."""
# Each block ends with a wait for the device, after which a GPU is idle until the host has launched
# its next kernels: a few tenths of a millisecond, which is 3 to 6 % of 10 ms.
BLOCK_S = {"cpu": 0.01, "cuda": 0.1}
"""Steps are timed in blocks of at least so long [s], by type of device."""
SHORT_EPOCH_S = 0.1
"""Epochs this short are blocks themselves: ends of epochs, with ragged steps, weigh in them."""
PRECISION = 0.03
"""Half the 95 % interval of the median that is sought, as a share of the median."""
SHORTEST_S, LONGEST_S = 0.3, 1.0
"""Timing takes as long at least, since blocks that follow one another are alike where a machine's
speed drifts; and it ends by then, as precise or not [s]."""
MIN_BLOCKS = 6
"""Blocks from which on order statistics have a 95 % interval of the median."""

TakeStep = Callable[[], int]
"""Does one optimizer step and returns its number of samples."""


class Timed(NamedTuple):
    """Seconds of one step, that is of `samples_per_step` samples."""

    step_s: float
    """Median over blocks [s]."""
    low_s: float
    high_s: float
    """Ends of its 95 % interval [s]; with fewer than six blocks, of all that was seen."""
    num_steps: int


def isolated_time(
    take_step: TakeStep,
    *,
    samples_per_step: int,
    num_train: int,
    block_s: float,
    clock: Clock,
    turnstile: Turnstile,
    synchronize: Callable[[], None],
    now: Callable[[], float],
) -> Timed | None:
    """Returns the time of a step while all co-tenants of the device are paused.

    None where they could not be paused, or a step takes longer than they would wait.
    """
    with clock.span("compile_s"):
        step_s = warm_up(take_step, limit_s=WARM_UP_S, synchronize=synchronize, now=now)
    with clock.span("measuring_s"):
        for _ in range(MAX_TURNS):
            with turnstile.measuring(patience_s=MEASURE_WITHIN_S) as turn:
                if turn is None:
                    return None
                # What was made ready while others were at work.
                take_step()
                timed = time_steps(
                    take_step,
                    samples_per_step=samples_per_step,
                    num_train=num_train,
                    block_s=block_s,
                    step_s=step_s,
                    limit_s=turn.left_s - step_s,
                    synchronize=synchronize,
                    now=now,
                )
            if turn.is_isolated:
                return timed
    return None


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


def time_steps(
    take_step: TakeStep,
    *,
    samples_per_step: int,
    num_train: int,
    block_s: float,
    step_s: float,
    limit_s: float,
    synchronize: Callable[[], None],
    now: Callable[[], float],
) -> Timed:
    """Times steps of the real pipeline until their median is precise, or `limit_s` is used up.

    The median is over blocks of steps, each as seconds per sample, so that a ragged step at an
    epoch's end counts by its samples; its interval is that of order statistics, without assumptions
    on how times scatter. No block is begun that would not end in time, but for the first.

    Args:
        take_step: does the next step; may leave it queued on the device.
        samples_per_step: effective batch size.
        num_train: samples of an epoch.
        block_s: shortest block [s], see `BLOCK_S`.
        step_s: seconds of a step, roughly.
        limit_s: time for it [s]; `LONGEST_S` bounds it too.
        synchronize: waits for the device.
        now: a monotonic clock [s].
    """
    block_samples = _block_samples(samples_per_step, num_train, step_s, block_s)
    limit_s = min(limit_s, LONGEST_S)
    synchronize()
    began_s = now()
    per_sample, num_steps, longest_s = list[float](), 0, 0.0
    while True:
        block_began_s, samples = now(), 0
        while samples < block_samples:
            samples += take_step()
            num_steps += 1
        synchronize()
        block_s = now() - block_began_s
        longest_s = max(longest_s, block_s)
        per_sample.append(block_s / samples)
        took_s = now() - began_s
        if took_s + longest_s >= limit_s or (took_s >= SHORTEST_S and _is_precise(per_sample)):
            break
    low, middle, high = (samples_per_step * value for value in _median_interval(per_sample))
    return Timed(step_s=middle, low_s=low, high_s=high, num_steps=num_steps)


def _block_samples(samples_per_step: int, num_train: int, step_s: float, block_s: float) -> int:
    """Returns the samples of a block: whole epochs if they are short, else steps of `block_s`."""
    epoch_s = step_s * math.ceil(num_train / samples_per_step)
    if epoch_s <= SHORT_EPOCH_S:
        return num_train * max(1, math.ceil(block_s / max(epoch_s, 1e-6)))
    return samples_per_step * max(1, math.ceil(block_s / step_s))


def _is_precise(values: list[float]) -> bool:
    if len(values) < MIN_BLOCKS:
        return False
    low, middle, high = _median_interval(values)
    return high - low <= 2 * PRECISION * middle


def _median_interval(values: list[float]) -> tuple[float, float, float]:
    """Returns the median between the ends of its 95 % interval."""
    ordered, left_out = sorted(values), _left_out(len(values))
    return ordered[left_out], statistics.median(ordered), ordered[-1 - left_out]


@cache
def _left_out(count: int) -> int:
    """Returns how many values on each side lie outside the 95 % interval of the median.

    The largest k with 2 · P(B ≤ k − 1) ≤ 5 %, B the number of values below the median, which is
    binomial with n = count and p = 1/2. None is left out of fewer than six.
    """
    left_out, tail = 0, 0.5**count
    while 2 * tail <= 0.05:
        left_out += 1
        tail += math.comb(count, left_out) * 0.5**count
    return left_out
