"""Runs finalists in rounds and drops the one that is clearly out, with a known error rate.

Finalists A, B, C take one run each a round, with a common seed: A B C A B C ... After a round, a
finalist is dropped if the present leader is faster beyond doubt, where "faster" is the lower
expected time with restarts. The chance that the true best is ever dropped is at most `error_rate`,
for any number of rounds and rivals, by a union bound over two tests with half of it each:

- *Time.* The ratio of the two recipes' times is at least the lower end of a paired t-interval on
  log time, its confidence shared out over looks and rivals. Three pairs are the least.
- *Success.* Given that ratio, what success rates would make the slower one the true best? The
  chance of the hits seen under a fixed guess, divided by the highest chance under any such rates,
  exceeds 1/α at any time with probability α at most (an e-process), so looking often costs nothing.

Both take log times to be normal with about the same spread in both recipes, and the cost of a miss
as seen. Measured (tests/benchmarks/bench_certify.py, with unequal spreads too), the true best is
dropped in under 2 % of races at an error rate of 5 %.

Sources: Wasserman, Ramdas and Balakrishnan 2020, Universal inference, section 8, arXiv:1912.11436
(mixture in the numerator, supremum below); Student 1908 for the interval.
"""

# After 3 hits of 3 a success rate may be 0.4 or 0.99, so that no rule can drop what is 1.5 times as
# slow within 5 rounds and be wrong in under 5 %. `least_success_rate` is the way out: no leader's
# rate is taken to be lower, unless it shows fewer hits. Where it is, the error rate does not hold.

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.stats import RunStatistics, Sample
from tune_speed.core.text import counted

Array = NDArray[np.float64]
# Two pairs have one degree of freedom: their spread is nearly unknown.
LEAST_PAIRS = 3
# Least standard deviation of log time that is assumed: no clock of a real run is finer.
LEAST_SPREAD = 1e-3
# Beta densities of a success rate: means 0.98, 0.8 and 0.33.
SURE, OFTEN, SELDOM = (1.0, 0.02), (2.0, 0.5), (0.5, 1.0)
# Mixture of the numerator: weight, density of the leader's rate, density of the rival's.
# Half the weight is on the usual case: both always hit, and only their times differ. Any guess
# keeps the error rate; a good one drops sooner.
GUESSES = ((0.5, SURE, SURE), (0.2, SURE, SELDOM), (0.15, OFTEN, OFTEN), (0.15, OFTEN, SELDOM))
# Grid of a rival's success rates, densest near 1, for the supremum.
RATES = 1 - np.linspace(0.0, 1.0, 501)[:-1] ** 2


class Dropped(NamedTuple):
    """A finalist that is out."""

    name: str
    round: int
    reason: str


class Pair(NamedTuple):
    """Leader and rival by their runs; times in units of the leader's mean hit."""

    n: int
    leader_hits: int
    rival_hits: int
    leader_miss: float
    """Time of a leader's miss, at most."""
    rival_hit: float
    """Mean time of a rival's hit, at least."""
    rival_miss: float
    """Mean time of a rival's miss, at least."""


class Elimination:
    """Finalists, their runs, and who is out. Replaying the runs in order builds the same race."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        num_rounds: int = 5,
        error_rate: float = 0.05,
        least_success_rate: float = 0.5,
        miss_s: float | None = None,
        drops: bool = True,
    ) -> None:
        """Starts a race; nobody is dropped after the last round, which would save nothing.

        No leader's success rate is taken to be lower than `least_success_rate`. `miss_s` is the
        time limit [s] in the `anytime` mode, where a miss takes that long; None if runs have a
        fixed length. Without `drops` all run to the end: where samples are no times.
        """
        assert len(set(names)) == len(names) > 0, names
        assert 0 < error_rate < 1 and 0 < least_success_rate <= 1
        self.names = tuple(names)
        self.num_rounds = num_rounds
        self.samples: dict[str, list[Sample]] = {name: [] for name in names}
        self.dropped: tuple[Dropped, ...] = ()
        self.num_closed = 0
        self._error_rate = error_rate
        self._least_success_rate = least_success_rate
        self._miss_s, self._drops = miss_s, drops

    @property
    def alive(self) -> tuple[str, ...]:
        out = {dropped.name for dropped in self.dropped}
        return tuple(name for name in self.names if name not in out)

    def add(self, name: str, sample: Sample) -> None:
        assert name in self.alive, (name, self.alive)
        assert len(self.samples[name]) == self.num_closed, (name, self.num_closed)
        assert 0 < sample.spent_s < math.inf, (name, sample)
        self.samples[name].append(sample)

    def close_round(self) -> tuple[Dropped, ...]:
        alive = self.alive
        assert all(len(self.samples[name]) == self.num_closed + 1 for name in alive), alive
        self.num_closed += 1
        if not self._drops or not LEAST_PAIRS <= self.num_closed < self.num_rounds:
            return ()
        leader, *rivals = self._by_expected_time(alive)
        found = [self._judge(leader, rival) for rival in rivals]
        dropped = tuple(one for one in found if one is not None)
        self.dropped += dropped
        return dropped

    def order(self) -> tuple[str, ...]:
        out = [dropped.name for dropped in reversed(self.dropped)]
        return (*self._by_expected_time(self.alive), *out)

    def _by_expected_time(self, names: Sequence[str]) -> list[str]:
        def key(name: str) -> tuple[float, float]:
            found = RunStatistics(tuple(self.samples[name]))
            return found.expected_s, found.spent_s

        return sorted(names, key=key)

    def _judge(self, leader: str, rival: str) -> Dropped | None:
        num_rivals, num_looks = len(self.names) - 1, self.num_rounds - LEAST_PAIRS
        # Half of the error is that of times, half that of successes. Only the former is shared out
        # over looks: the e-process of the latter holds whenever it is looked at.
        share = self._error_rate / 2 / num_rivals
        pair = look(
            self.samples[leader], self.samples[rival], tail=share / num_looks, miss_s=self._miss_s
        )
        evidence = log_evidence(pair, least_success_rate=self._least_success_rate)
        if evidence < -math.log(share):
            return None
        ours, theirs = (RunStatistics(tuple(self.samples[name])) for name in (leader, rival))
        n = self.num_closed
        figures = (
            f"{rival} is out after {counted(n, 'run')}: {theirs.spent_s / n:.3g} s a run,"
            f" {theirs.hits} of {n} met the target, against {ours.spent_s / n:.3g} s,"
            f" {ours.hits} of {n} of {leader}"
        )
        if math.isinf(evidence):
            rate = least_leader_rate(pair, self._least_success_rate)
            why = (
                f"a run takes at least {pair.rival_hit:.2f}× as long, so it is slower "
                f"even if {leader} meets the target in only {rate:.0%} of runs"
            )
        else:
            chance = num_rivals * math.exp(-evidence)
            why = f"were {rival} the fastest, so clear a lead had a chance of {chance:.1%}"
        return Dropped(rival, self.num_closed, f"{figures}; {why}")


def look(
    leader: Sequence[Sample], rival: Sequence[Sample], *, tail: float, miss_s: float | None = None
) -> Pair:
    """Returns the two side by side; the rival's times hold but for a chance of `tail`."""
    hit_s, missed_s = _times_s(leader)
    rival_hit_s, rival_missed_s = _times_s(rival)
    # A miss takes as long as a hit where none was seen.
    rival_miss_s = statistics.fmean(rival_missed_s or rival_hit_s)
    pairs = list(zip(leader, rival, strict=True))
    both = [(ours, theirs) for ours, theirs in pairs if ours.is_hit and theirs.is_hit]
    # With fewer than three pairs of hits: a run of a fixed length takes as long in a miss, so all
    # pairs count; in `anytime` mode a hit of the rival may take no time at all.
    if len(both) >= LEAST_PAIRS:
        rival_hit = _least_slowdown(both, tail)
        rival_miss = rival_hit * rival_miss_s / statistics.fmean(rival_hit_s)
    elif miss_s is None:
        rival_hit = rival_miss = _least_slowdown(pairs, tail)
    else:
        rival_hit, rival_miss = 0.0, rival_miss_s / max(hit_s, default=math.inf)
    leader_miss = 1.0
    if hit_s:
        unseen_s = max(hit_s) if miss_s is None else miss_s
        leader_miss = max(1.0, max(missed_s, default=unseen_s) / statistics.fmean(hit_s))
    return Pair(len(leader), len(hit_s), len(rival_hit_s), leader_miss, rival_hit, rival_miss)


def _times_s(samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    hits, misses = ([s.spent_s for s in samples if s.is_hit == kind] for kind in (True, False))
    return hits, misses


def least_leader_rate(pair: Pair, least_success_rate: float) -> float:
    """Returns the lowest success rate that the leader may have: what it showed, if that is less."""
    return min(least_success_rate, pair.leader_hits / pair.n)


def log_evidence(pair: Pair, *, least_success_rate: float = 0.5) -> float:
    """Returns ln of the evidence against the rival being the best; inf where that cannot be.

    A recipe's expected time is hit + (1 - p) / p * miss. For each success rate of the rival, the
    leader's can then be `highest` at most if the rival is the best; the denominator is the chance
    of the hits seen under the most likely of these rates.
    """
    least = least_leader_rate(pair, least_success_rate)
    rival_cost = pair.rival_hit + (1 - RATES) / RATES * pair.rival_miss
    highest = 1 / (1 + np.maximum(rival_cost - 1, 0.0) / pair.leader_miss)
    is_possible = highest >= least
    if not is_possible.any():
        return math.inf
    likeliest = np.clip(pair.leader_hits / pair.n, least, highest[is_possible])
    worst = _log_chance(pair.leader_hits, pair.n, likeliest) + _log_chance(
        pair.rival_hits, pair.n, RATES[is_possible]
    )
    return _log_mixture(pair) - float(worst.max())


def _log_chance(hits: int, n: int, rates: Array) -> Array:
    from scipy.special import xlog1py, xlogy

    return np.asarray(xlogy(hits, rates) + xlog1py(n - hits, -rates))


def _log_mixture(pair: Pair) -> float:
    from scipy.special import betaln

    def chance(hits: int, a: float, b: float) -> float:
        return math.exp(betaln(a + hits, b + pair.n - hits) - betaln(a, b))

    terms = (
        weight * chance(pair.leader_hits, *leader) * chance(pair.rival_hits, *rival)
        for weight, leader, rival in GUESSES
    )
    return math.log(math.fsum(terms))


def _least_slowdown(pairs: Sequence[tuple[Sample, Sample]], tail: float) -> float:
    from scipy.special import stdtrit

    logs = np.log([theirs.spent_s / ours.spent_s for ours, theirs in pairs])
    error = max(float(logs.std(ddof=1)), LEAST_SPREAD) / math.sqrt(len(logs))
    return math.exp(logs.mean() + error * stdtrit(len(logs) - 1, tail))
