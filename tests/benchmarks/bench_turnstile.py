"""What the turnstile costs a training while nobody measures.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/bench_turnstile.py

Takes about 25 seconds. First the microseconds of one call of `must_wait`, which looks at the lock
once in a while only: the median of repeats, which take turns with an empty loop that is subtracted.
Then the call after each step of about a millisecond, which leaves the caches full of other things:
the mean over that of an empty function there, as a share of the step; the bar is on this share.
Then the steps per second with the poll after each step and without, in short spans that take turns,
either first in every other round; the ratio is that of the medians, with over without. Beside it
stand the quartiles of the ratios of single rounds and, as the noise, the same for two loops without
the poll: on a machine that others use too, the noise exceeds what is looked for.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tune_speed.runtime.turnstile import Turnstile

LARGEST_SHARE = 0.005


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20, help="steps of one span")
    parser.add_argument("--step-s", type=float, default=0.001, help="aimed seconds of one step")
    parser.add_argument("--polls", type=int, default=5000, help="polls of one repeat")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    with (
        tempfile.TemporaryDirectory() as folder,
        Turnstile.open("bench", folder=Path(folder)) as turnstile,
        turnstile.training(),
    ):
        assert turnstile.why_not is None, turnstile.why_not
        print_poll(turnstile.must_wait, arguments)
        print_poll_after_steps(turnstile.must_wait, arguments)
        print_throughput(turnstile.must_wait, arguments)


def nothing() -> bool:
    return False


def print_poll(poll: Callable[[], bool], arguments: argparse.Namespace) -> None:
    seconds: dict[str, list[float]] = {"poll": [], "empty": []}
    for _ in range(arguments.rounds):
        seconds["poll"].append(polls_s(poll, arguments.polls))
        seconds["empty"].append(polls_s(nothing, arguments.polls))
    poll_us, empty_us = (
        statistics.median(seconds[side]) / arguments.polls * 1e6 for side in ("poll", "empty")
    )
    print(
        f"must_wait(): {poll_us - empty_us:.2f} µs per call more than an empty function"
        f" ({poll_us:.2f} - {empty_us:.2f}; median of {arguments.rounds} x {arguments.polls})"
    )


def polls_s(poll: Callable[[], bool], count: int) -> float:
    began_s = time.perf_counter()
    for _ in range(count):
        poll()
    return time.perf_counter() - began_s


def print_poll_after_steps(poll: Callable[[], bool], arguments: argparse.Namespace) -> None:
    matrix = sized_matrix(arguments.step_s)
    calls_s: dict[str, list[float]] = {"poll": [], "empty": []}
    step_s = []
    for _ in range(arguments.rounds // 2):
        for side, call in (("poll", poll), ("empty", nothing)):
            for _ in range(arguments.steps * 5):  # long enough for several looks
                step_s.append(steps_s(matrix, None, 1))
                calls_s[side].append(polls_s(call, 1))
    # A call that another process interrupted tells of that process.
    poll_us, empty_us = (trimmed_mean(calls_s[side]) * 1e6 for side in ("poll", "empty"))
    step_us = statistics.median(step_s) * 1e6
    share = (poll_us - empty_us) / step_us
    print(
        f"must_wait() after a step: {poll_us - empty_us:.2f} µs more than an empty function"
        f" (mean without the slowest 1 %, {len(calls_s['poll'])} calls), which is"
        f" {share:.3%} of a step of {step_us:.0f} µs; the bar, under {LARGEST_SHARE:.1%}:"
        f" {'held' if share < LARGEST_SHARE else 'MISSED'}"
    )


def trimmed_mean(values: list[float]) -> float:
    return statistics.mean(sorted(values)[: len(values) * 99 // 100])


def print_throughput(poll: Callable[[], bool], arguments: argparse.Namespace) -> None:
    matrix = sized_matrix(arguments.step_s)
    sides = {"with": poll, "without": None, "again without": None}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(arguments.rounds):
        order = list(sides) if number % 2 else list(reversed(sides))
        for side in order:
            seconds[side].append(steps_s(matrix, sides[side], arguments.steps))
    step_s = statistics.median(seconds["without"]) / arguments.steps
    print(f"a step of {step_s * 1e3:.3f} ms, {arguments.rounds} rounds of {arguments.steps} steps")
    print_ratio("with / without the poll", seconds["with"], seconds["without"])
    print_ratio("noise: without / without", seconds["again without"], seconds["without"])


def sized_matrix(step_s: float) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    size = 32
    while True:
        matrix = np.random.default_rng(0).standard_normal((size, size), np.float32)
        if min(steps_s(matrix, None, 5) / 5 for _ in range(5)) >= step_s:
            return matrix
        size += 16


def steps_s(
    matrix: "np.ndarray[tuple[int, int], np.dtype[np.float32]]",
    poll: Callable[[], bool] | None,
    count: int,
) -> float:
    began_s = time.perf_counter()
    for _ in range(count):
        matrix @ matrix
        if poll is not None:
            poll()
    return time.perf_counter() - began_s


def print_ratio(name: str, seconds: list[float], base: list[float]) -> None:
    ratio = statistics.median(base) / statistics.median(seconds)
    low, _, high = statistics.quantiles(
        [one / other for one, other in zip(base, seconds, strict=True)], n=4
    )
    print(f"{name}: {ratio:.4f} of the steps per second (quartiles {low:.4f} to {high:.4f})")


if __name__ == "__main__":
    main()
