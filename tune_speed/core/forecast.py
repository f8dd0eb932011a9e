"""What more searching is likely to bring: how far the best error of a study's runs still falls.

A search has used its budget up to t and goes on for r·t. That its best error e falls to e' or lower
has the odds

    P / (1 − P) = ODDS · r^POWER · (e'/e)^(1/SPREAD),    ODDS ∝ W^−BY_WORTH,  SPREAD ∝ n^−BY_RUNS

with the full runs' worth W, the training time of all trials over that of the longest, and the
number n of runs that went to their end. With ODDS = POWER = 1 it is the law of records. The
constants are those by which simulated and recorded searches are likeliest, see tests/benchmarks.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from tune_speed.core.comparability import final_metric
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.targets import Target, hardest
from tune_speed.core.text import chance_text

LEAST_RUNS = 6
"""Runs that went to their end, before which nothing is forecast."""
CHECKED_RATIO = 3.0
"""Times what was spent, up to which the intervals were seen to hold: beyond, they hold less."""
FINEST = 3e-3
"""Added to the error of a share [1]: about a sample of those that it is measured on."""


class Range(NamedTuple):
    """An interval that holds what comes in four of five cases, and its middle."""

    low: float
    middle: float
    high: float


class Law(NamedTuple):
    """The constants of the law above, and what follows from it."""

    odds: float
    power: float
    spread: float
    level: float
    """Probability, by the law, of intervals of the best error that hold it in four of five cases:
    it falls more evenly than the law says."""
    by_worth: float = 0.0
    by_runs: float = 0.0

    def at(self, worth: float, runs: int) -> "Law":
        odds, spread = self.odds * worth**-self.by_worth, self.spread * runs**-self.by_runs
        return Law(odds, self.power, spread, self.level)

    def chance(self, fall: float, ratio: float) -> float:
        """Returns P(log(e/e') > fall) after `ratio` times what was spent."""
        if ratio <= 0:
            return 0.0
        against = fall / self.spread - math.log(self.odds) - self.power * math.log(ratio)
        return 1 / (1 + math.exp(min(against, 700.0)))

    def fall(self, chance: float, ratio: float) -> float:
        """Returns the fall that has this chance: 0 where even none is less likely."""
        log_odds = math.log(self.odds * ratio**self.power) - math.log(chance / (1 - chance))
        return self.spread * max(log_odds, 0.0)

    def ratio(self, chance: float, fall: float) -> float:
        """Returns the multiple of what was spent after which a fall has this chance."""
        log_odds = math.log(chance / (1 - chance)) + fall / self.spread - math.log(self.odds)
        return math.exp(min(log_odds / self.power, 700.0))

    def falls(self, ratio: float) -> Range:
        """Returns the interval of the fall of the best error, after `ratio` times what was spent.

        Where none has a larger chance than may lie below, it is the lower end.
        """
        none, tail = 1 - self.chance(0.0, ratio), (1 - self.level) / 2
        if none >= self.level:
            return Range(0.0, 0.0, 0.0)
        above = 1 - self.level if none > tail else tail
        return Range(*(self.fall(chance, ratio) for chance in (1 - tail, 0.5, above)))

    def ratios(self, fall: float, until: float) -> Range:
        """Returns the interval of when the error has fallen so far; infinite: not `until` then.

        Where that has a chance above a tenth, it is the upper end, and a fifth is below the lower.
        """
        never = 1 - self.chance(fall, until)
        if never >= 0.8:
            return Range(math.inf, math.inf, math.inf)
        low = self.ratio(0.2 if never > 0.1 else 0.1, fall)
        middle = self.ratio(0.5, fall) if never <= 0.5 else math.inf
        return Range(low, middle, math.inf if never > 0.1 else self.ratio(0.9, fall))


LAW = Law(odds=13.0, power=1.13, spread=0.417, level=0.75, by_worth=0.76, by_runs=0.35)


class Outlook(NamedTuple):
    """What the finished runs of a study say of a target."""

    runs: int
    """Those that count."""
    worth: float
    """Training time of all trials over that of the longest."""
    best: float
    met_by: str | None
    """The first that met the target; None: none did."""
    target: Target

    @classmethod
    def of(cls, records: Iterable[TrialRecord], target: Target) -> "Outlook | None":
        """Returns it for records in the order of their ends.

        Where the length is free (`anytime`), a run that was stopped counts as well. None: too few
        went to their end, or the metric has no error: it is above 1, or below 0 and less is better.
        """
        ends, spent = dict[str, float](), list[float]()
        for record in records:
            spent += [run.clocks.train_s for run in record.runs]
            metric, mode = final_metric(record), record.workload.get("mode")
            is_stopped = record.status == Status.CAPPED and mode == "anytime"
            is_whole = record.status in (Status.REACHED, Status.MISSED) or is_stopped
            if is_whole and metric is not None and math.isfinite(metric):
                ends[record.trial_id] = metric
        if len(ends) < LEAST_RUNS:
            return None
        best = hardest(tuple(ends.values()), target.mode)
        met_by = next((trial_id for trial_id, end in ends.items() if target.holds(end)), None)
        worth = max(sum(spent) / (max(spent) or math.inf), 1.0)
        found = cls(len(ends), worth, best, met_by, target)
        return found if min(found.error(best), found.error(target.value)) > 0 else None

    def error(self, metric: float) -> float:
        """Returns e of a metric: 1 − m where more is better, m where less is."""
        return metric if self.target.mode == "min" else 1 - metric + FINEST

    def metric(self, fall: float) -> float:
        error = self.error(self.best) * math.exp(-fall)
        return error if self.target.mode == "min" else min(1 - error + FINEST, 1.0)

    @property
    def law(self) -> Law:
        return LAW.at(self.worth, self.runs)

    @property
    def fall(self) -> float:
        """Log of the best error over the target's: what is left to do; 0 if it was met."""
        return max(math.log(self.error(self.best) / self.error(self.target.value)), 0.0)

    def chance(self, ratio: float) -> float:
        return 1.0 if self.met_by else self.law.chance(self.fall, ratio)

    def words(self, ratio: float) -> str:
        """Returns `63% to meet the target by then`; empty where it was met or is too far ahead."""
        if self.met_by or ratio > CHECKED_RATIO or self.target.seeks_best:
            return ""
        return f"{chance_text(self.chance(ratio))} to meet the target by then"
