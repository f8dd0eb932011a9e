"""Where to begin, by studies of related tasks: with their best recipes, as long as they agree.

Configurations of each other study are listed twice: those that met its target by c / p, with the
mean cost c of n runs and their chance p = (hits + ½) / (n + 1), and all by how their runs ended.
The first of either list are tried by turns. A study that agrees with our trials comes first:
agreement is Kendall's τ between how these ended and what a random forest of its trials expects
of them. Below `LEAST` a study suggests nothing more.

Source: best recipes of earlier tasks as a start, Feurer, Springenberg and Hutter, "Initializing
Bayesian hyperparameter optimization via meta-learning", AAAI 2015; weights by the pairs of trials
that are predicted in the right order, Feurer et al., arXiv 1802.02219.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from tune_speed.core.records import ENDS, Status
from tune_speed.core.words import ProposalKind, ProposalReason
from tune_speed.tuning.policy.base import Outcome, ParamsKey, PriorTrial
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.trials import Trial

LEAST = 0.2
"""Least agreement of a study that suggests recipes."""
MOST_OF_STUDY = 4
"""Recipes of one study that are tried, at most."""
FEW = 4
"""Our trials that ended from which on agreement is measured."""


class Agreement(NamedTuple):
    """How well a study's trials say how ours end."""

    study: str
    value: float | None
    """Kendall's τ, in [-1, 1]; None: too few of ours ended."""
    num: int
    """Our trials that it is over."""


class Related:
    """The studies of other tasks that a search learns from."""

    def __init__(self, trials: Iterable[PriorTrial], encoder: Encoder, *, by_time: bool) -> None:
        """Takes finished trials of other tasks; `by_time`: runs end where they meet the target."""
        of_task = defaultdict[str, list[PriorTrial]](list)
        for trial in trials:
            if trial.outcome.status in ENDS:
                of_task[trial.task].append(trial)
        self._studies = {name: Prior(own, encoder, by_time) for name, own in of_task.items()}
        self._by_time = by_time

    def choice(
        self, ended: Sequence[Trial], is_open: Callable[[dict[str, Any]], bool]
    ) -> tuple[dict[str, Any], ProposalReason] | None:
        """Returns a recipe that `is_open` lets through, and why; None: no study has any."""
        open_ = {
            name: [params for params in study.best[:MOST_OF_STUDY] if is_open(params)]
            for name, study in self._studies.items()
        }
        left = [found for found in self.agreements(ended) if open_[found.study]]
        left = [f for f in left if f.value is None or f.value >= LEAST]
        if not left:
            return None
        # The study that agrees best; before any value is known, the one tried least.
        first = max(left, key=lambda f: (f.value or 0.0, len(open_[f.study])))
        figures = {"study": first.study, "correlation": first.value, "num": first.num}
        return open_[first.study][0], ProposalReason.of(ProposalKind.RELATED, **figures)

    def agreements(self, ended: Sequence[Trial]) -> list[Agreement]:
        """Returns each study's agreement with our trials that ran to their ends."""
        own = [t for t in ended if t.number >= 0 and t.ended.status in ENDS]
        grades = [_grade(t.ended, by_time=self._by_time) for t in own]
        num = len(own)
        if len(set(grades)) < FEW:
            return [Agreement(name, None, num) for name in self._studies]
        units = np.array([t.units for t in own])
        return [
            Agreement(name, _correlation(study.expected(units), grades), num)
            for name, study in self._studies.items()
        ]


class Prior:
    """Trials of another study."""

    def __init__(self, trials: Sequence[PriorTrial], encoder: Encoder, by_time: bool) -> None:
        self._encoder, self._trials = encoder, trials
        self._grades = [_grade(trial.outcome, by_time=by_time) for trial in trials]

    @functools.cached_property
    def best(self) -> list[dict[str, Any]]:
        """The fastest, the one that ended best, the second fastest, …; each once."""
        runs = defaultdict[ParamsKey, list[int]](list)
        for i, trial in enumerate(self._trials):
            runs[self._encoder.key(trial.params)].append(i)
        met = [own for own in runs.values() if any(map(self._met, own))]
        fastest = sorted(met, key=self._expected_s)
        by_grade = sorted(runs.values(), key=self._mean_grade, reverse=True)
        turns = [own for pair in zip_longest(fastest, by_grade) for own in pair if own]
        once = {own[0]: self._trials[own[0]].params for own in turns}
        return list(once.values())

    def _met(self, i: int) -> bool:
        return self._trials[i].outcome.status == Status.REACHED

    def _mean_grade(self, own: Sequence[int]) -> float:
        return sum(self._grades[i] for i in own) / len(own)

    def _expected_s(self, own: Sequence[int]) -> float:
        cost_s = sum(self._trials[i].outcome.train_s for i in own) / len(own)
        return cost_s * (len(own) + 1) / (sum(map(self._met, own)) + 0.5)

    def expected(self, units: FloatArray) -> FloatArray:
        """Returns the quantiles (N,) of its grades that its trials let expect at units (N, P)."""
        quantiles: FloatArray = self._forest.predict(self._encoder.points(units))
        return quantiles

    @functools.cached_property
    def _forest(self) -> Any:
        # scikit-learn takes a second to import.
        from scipy.stats import rankdata
        from sklearn.ensemble import RandomForestRegressor

        units = np.array([self._encoder.units(trial.params) for trial in self._trials])
        forest = RandomForestRegressor(100, random_state=0)
        return forest.fit(self._encoder.points(units), rankdata(self._grades) / len(self._grades))


def _grade(outcome: Outcome, *, by_time: bool) -> float:
    """Returns how good an end is: the metric, and above all of these hits by their times."""
    if by_time and outcome.status == Status.REACHED:
        return 1e6 - outcome.train_s
    end = outcome.curve.metric[-1:].tolist()
    return end[0] if end and np.isfinite(end[0]) else -1e6


def _correlation(expected: FloatArray, grades: Sequence[float]) -> float:
    from scipy.stats import kendalltau

    value = float(kendalltau(expected, grades).statistic)
    # A forest that expects the same everywhere has none.
    return value if np.isfinite(value) else 0.0
