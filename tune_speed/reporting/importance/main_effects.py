"""How much each parameter matters by itself: main effects of a forest fitted to trials.

| symbol | meaning                                                                        |
|--------|--------------------------------------------------------------------------------|
| x_j    | value of parameter j                                                           |
| f      | the forest's mean prediction                                                   |
| U      | uniform distribution over the region that was tried (`tried_region`)           |
| A_j    | part of the region in which parameter j plays a part; all of it for most       |
| P      | probability under U                                                            |
| S_j    | main effect: P(A_j) · Var_{x_j}( E_U[f | x_j, A_j] ) / Var_U(f), in [0, 1]      |

S_j is the share of the forest's variance that is gone where x_j alone is known: the first-order
index of Sobol, the unary importance of functional ANOVA: y = 3 x_1 + x_2 on the unit square gives
0.9 and 0.1. What the shares lack to 1 acts in combinations only.

Source: Hutter, Hoos & Leyton-Brown, "An Efficient Approach for Assessing Hyperparameter
Importance", 2014; Sobol, "Sensitivity estimates for nonlinear mathematical models", 1993. They
integrate over boxes of leaves, or draw twice; here the variance between groups of equal x_j is
taken of one sample, less what chance gives it (as in a one-way analysis of variance), which needs
no product of intervals and so takes conditional parameters. Of few trials a forest sees the
largest effects only: of 50 noiseless ones, 0.96 and 0.02 in place of 0.9 and 0.1; of 500, 0.91 and
0.09 (means of 6 draws).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tune_speed.reporting.importance.region import (
    ABSENT,
    Codes,
    Column,
    Matrix,
    codes_of,
    draw,
    matrix_of,
)

# Points of the region at which the forest predicts: effects of nothing then stay below 0.5 %.
NUM_POINTS = 4096
NUM_TREES = 64
# Draws of the trials with replacement, and trees fitted to each, for the bands.
NUM_RESAMPLES, TREES_OF_RESAMPLE = 20, 12
# Trials of a leaf at least.
LEAF_TRIALS = 2
BAND = (0.05, 0.95)
# Predictions that differ by less of their size are equal.
ROUNDING = 1e-9

Floats = NDArray[np.float64]


class Effect(NamedTuple):
    """Main effect of one parameter, as a share of the forest's variance."""

    value: float
    low: float
    high: float
    """Ends of the 90 % band over resampled trials, which holds the value."""


class Effects(NamedTuple):
    """What a forest says of an outcome."""

    explained: float
    """Share of the outcome's variance that trees predict of trials which they have not seen
    (out-of-bag R²); 0 or less: nothing."""
    by_name: dict[str, Effect]


class _Forest(NamedTuple):
    """Regression trees, each fitted to as many trials as there are, drawn with replacement."""

    trees: list[Any]
    """scikit-learn's trees without their estimators, whose checks would cost more than they do."""
    is_seen: list[NDArray[np.bool_]]
    """For each tree which trials (N,) it was fitted to."""

    def predict(self, chosen: Matrix) -> Floats:
        """Returns the mean of the trees (P,)."""
        return np.asarray(np.mean([tree.predict(chosen)[:, 0] for tree in self.trees], axis=0))

    def explained(self, chosen: Matrix, outcome: Floats) -> float:
        """Returns R² of the mean of those trees, for each trial, that were not fitted to it."""
        unseen = ~np.array(self.is_seen)
        guesses = np.array([tree.predict(chosen)[:, 0] for tree in self.trees])
        known = unseen.any(axis=0)
        means = (guesses * unseen).sum(axis=0)[known] / unseen.sum(axis=0)[known]
        missed = ((outcome[known] - means) ** 2).sum()
        return float(1 - missed / ((outcome[known] - outcome.mean()) ** 2).sum())


def main_effects(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], outcome: Floats, *, seed: int
) -> Effects:
    """Returns the main effect of each column on `outcome` (N,), given what the N rows chose.

    `outcome` must vary.
    """
    rng = np.random.default_rng(seed)
    chosen = matrix_of(columns, codes_of(columns, rows))
    points = draw(columns, size=NUM_POINTS, rng=rng)
    at_points = matrix_of(columns, points)
    forest = _fitted(chosen, outcome, num_trees=NUM_TREES, rng=rng)
    predictions = forest.predict(at_points)
    resampled = []
    for _ in range(NUM_RESAMPLES):
        drawn = rng.integers(len(outcome), size=len(outcome))
        small = _fitted(chosen[drawn], outcome[drawn], num_trees=TREES_OF_RESAMPLE, rng=rng)
        resampled.append(small.predict(at_points))
    by_name = {}
    for column in columns:
        value = _share(column, points[column.name], predictions)
        shares = [_share(column, points[column.name], each) for each in resampled]
        low, high = map(float, np.quantile(shares, BAND))
        # The band of 20 resamples need not hold the value of all trials: it is widened to it.
        by_name[column.name] = Effect(value, min(low, value), max(high, value))
    return Effects(forest.explained(chosen, outcome), by_name)


def _fitted(
    chosen: Matrix, outcome: Floats, *, num_trees: int, rng: np.random.Generator
) -> _Forest:
    from sklearn import config_context
    from sklearn.tree import DecisionTreeRegressor

    forest = _Forest([], [])
    with config_context(skip_parameter_validation=True):
        for _ in range(num_trees):
            drawn = rng.integers(len(outcome), size=len(outcome))
            tree = DecisionTreeRegressor(
                min_samples_leaf=LEAF_TRIALS, random_state=int(rng.integers(2**31))
            )
            tree.fit(chosen[drawn], outcome[drawn], check_input=False)
            # The bare tree: the checks of its estimator would cost more than the prediction.
            forest.trees.append(tree.tree_)
            forest.is_seen.append(np.isin(np.arange(len(outcome)), drawn))
    return forest


def _share(column: Column, codes: Codes, predictions: Floats) -> float:
    """Returns S_j of a column with codes (P,) at the points where `predictions` (P,) are."""
    plays = codes != ABSENT
    variance = predictions.var()
    # Trials that were drawn may all have ended alike; what is left then is rounding.
    if variance <= (ROUNDING * abs(predictions).max()) ** 2 or not plays.any():
        return 0.0
    between = _between(column.groups(codes[plays]), predictions[plays])
    return float(min(1.0, plays.mean() * between / variance))


def _between(groups: NDArray[np.intp], values: Floats) -> float:
    """Returns the variance of the groups' expectations, estimated without bias but at least 0.

    Of k groups, N values in all: (Σ n_g (mean_g - mean)² - (k - 1) · W / (N - k)) / N, where W is
    the sum of squares within groups.
    """
    counts = np.bincount(groups)
    sums = np.bincount(groups, values)[counts > 0]
    counts = counts[counts > 0]
    total = float(((values - values.mean()) ** 2).sum())
    between = float((counts * (sums / counts - values.mean()) ** 2).sum())
    # Chance alone parts the means of groups: its share goes, as in a one-way analysis of variance.
    by_chance = (len(counts) - 1) * (total - between) / max(1, len(values) - len(counts))
    return max(0.0, between - by_chance) / len(values)
