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

The region is columns of numbers. A parameter depends on another where its path goes through a
value of it: `optimizer.sgd.lr` plays a part where `optimizer` is `sgd`. Elsewhere it is absent.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
# Values of one parameter as numbers, (N,): a category's place among the categories, a number's
# place between the least (0) and the greatest (1) that was tried, `ABSENT` where it plays no part.
Codes = NDArray[np.float64]

ABSENT = -1.0
# Positive numbers of which the greatest is so many times the least, and of which half lie in the
# lower quarter of the range, are logarithmic: records say what was tried, not from which scale.
LOG_SPAN = 10.0
# Numbers of so many different values at most, each tried twice or more on average, are levels: a
# choice of batch sizes, not a range.
MAX_LEVELS = 8
# Equal parts of a range, within which a parameter counts as held.
NUM_PARTS = 16
# Points of the region at which the forest predicts: effects of nothing then stay below 0.5 %.
NUM_POINTS = 4096
NUM_TREES = 64
# Trials that a tree is fitted to: of more it draws so many, as its time grows with them.
MOST_OF_TREE = 2000
# Draws of the trials with replacement, and trees fitted to each, for the bands.
NUM_RESAMPLES, TREES_OF_RESAMPLE = 20, 12
# Trials of a leaf at least.
LEAF_TRIALS = 2
BAND = (0.05, 0.95)
# Predictions that differ by less of their size are equal.
ROUNDING = 1e-9

Floats = NDArray[np.float64]


class Parent(NamedTuple):
    """What must be chosen for a parameter to play a part."""

    name: str
    code: float


@dataclass(frozen=True, kw_only=True)
class Column:
    """One parameter of the region."""

    name: str
    categories: tuple[str, ...] = ()
    """Its values as text, where they are not all numbers."""
    low: float = 0.0
    high: float = 1.0
    """Least and greatest number, or their logarithms."""
    is_log: bool = False
    levels: Codes | None = None
    """Codes of all its values, where they are few; None for a range."""
    parent: Parent | None = None

    def code(self, value: Any) -> float:
        if self.categories:
            return float(self.categories.index(str(value)))
        size = math.log(value) if self.is_log else float(value)
        return (size - self.low) / (self.high - self.low)

    def draw(self, rng: np.random.Generator, size: int) -> Codes:
        """Returns codes (size,) of values drawn evenly: of the levels, or of the range."""
        return rng.random(size) if self.levels is None else rng.choice(self.levels, size)

    def groups(self, codes: Codes) -> NDArray[np.intp]:
        """Returns for codes (N,) the group that each is in, (N,): its level or part of the range.

        Codes must not be absent.
        """
        if self.levels is None:
            # The greatest value, 1, belongs to the last part.
            return np.minimum((codes * NUM_PARTS).astype(np.intp), NUM_PARTS - 1)
        return np.asarray(np.searchsorted(self.levels, codes))

    def spread(self, codes: Codes) -> Matrix:
        """Returns the codes (N,) as a tree can split them: (N, 1), or (N, categories) of 0 and 1.

        An absent number lies below the range; an absent category is none of them.
        """
        # ABSENT is -1: one split of a tree tells it from the range, [0, 1].
        places = np.arange(len(self.categories))
        numbers = codes[:, None] == places if self.categories else codes[:, None]
        # The type of scikit-learn's trees, which convert nothing where their checks are off.
        return np.asarray(numbers, dtype=np.float32)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Returns a column for each parameter of which two values or more were tried."""
    names = dict.fromkeys(name for row in rows for name in row)
    found = (_column(name, [row[name] for row in rows if name in row]) for name in names)
    columns = {column.name: column for column in found if column is not None}
    return tuple(_with_parent(column, columns) for column in columns.values())


def codes_of(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> dict[str, Codes]:
    """Returns the codes (N,) of what the rows chose, by name."""
    return {
        c.name: np.array([c.code(row[c.name]) if c.name in row else ABSENT for row in rows])
        for c in columns
    }


def draw(columns: Sequence[Column], *, size: int, rng: np.random.Generator) -> dict[str, Codes]:
    """Returns codes (size,) of configurations drawn evenly from the region, by name.

    Parameters are drawn independently; then those go whose parent was drawn otherwise.
    """
    codes = {column.name: column.draw(rng, size) for column in columns}
    # A parent's path is shorter than its child's, so that absence is passed on.
    for column in sorted(columns, key=lambda column: column.name.count(".")):
        if column.parent is not None:
            plays = codes[column.parent.name] == column.parent.code
            codes[column.name] = np.where(plays, codes[column.name], ABSENT)
    return codes


def matrix_of(columns: Sequence[Column], codes: Mapping[str, Codes]) -> Matrix:
    return np.hstack([column.spread(codes[column.name]) for column in columns])


def _column(name: str, values: Sequence[Any]) -> Column | None:
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        categories = tuple(sorted(set(map(str, values))))
        levels = np.arange(len(categories), dtype=np.float64)
        return Column(name=name, categories=categories, levels=levels) if levels[1:].size else None
    different = sorted(set(values))
    if len(different) == 1:
        return None
    least, greatest = different[0], different[-1]
    in_lower_quarter = statistics.median(values) < least + (greatest - least) / 4
    is_log = 0 < least * LOG_SPAN <= greatest and in_lower_quarter
    low, high = (math.log(v) if is_log else float(v) for v in (different[0], different[-1]))
    column = Column(name=name, low=low, high=high, is_log=is_log)
    if len(different) > min(MAX_LEVELS, len(values) // 2):
        return column
    levels = np.array([column.code(value) for value in different])
    return Column(name=name, low=low, high=high, is_log=is_log, levels=levels)


def _with_parent(column: Column, columns: Mapping[str, Column]) -> Column:
    """Returns the column with the nearest parameter on whose value it depends, if there is one."""
    parts = column.name.split(".")
    for count in range(len(parts) - 2, 0, -1):
        above = columns.get(".".join(parts[:count]))
        if above is not None and parts[count] in above.categories:
            return replace(column, parent=Parent(above.name, above.code(parts[count])))
    return column


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
        drawn = rng.integers(len(outcome), size=min(len(outcome), MOST_OF_TREE))
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
            drawn = rng.integers(len(outcome), size=min(len(outcome), MOST_OF_TREE))
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
