"""Re-tunes a number of the recipe for each arm: else a comparison measures a stale rate."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.ablation.result import TuningPoint
from tune_speed.training.recipe import Recipe

SHORT_NAMES = {"lr": "optimizer.lr"}
# Factors that may be added where the best one lies at an end of those that were tried.
MOST_BEYOND = 2


def path_of(name: str) -> str:
    return SHORT_NAMES.get(name, name)


def value_at(recipe: Recipe, path: str) -> float | int:
    """Raises: ConfigError if no number is at the path, which may leave out names of components."""
    node: Any = recipe
    for name in path.removeprefix("recipe.").split("."):
        # What a node lacks is a component's name, as in `optimizer.sgd.lr`: it is passed over.
        node = getattr(node, name, node)
    # To Python, a bool is an int too.
    if isinstance(node, bool) or not isinstance(node, int | float):
        raise ConfigError(
            f"`retune` must name a number of every arm's recipe, but `{path}` is none in one of"
            " them. Try `lr`."
        )
    return node


class Order(NamedTuple):
    """How runs of the re-tuning compare."""

    by_time: bool = False
    """Whether they end where the target holds, so that their metrics at the end are alike."""
    sign: float = 1.0
    """1 where more of the metric is better, -1 where less is."""


ANY_ORDER = Order()


def next_factor(
    factors: Sequence[float], points: Sequence[TuningPoint], order: Order = ANY_ORDER
) -> float | None:
    """Returns a factor beyond the end where the best one lies; None where it lies between.

    The step is that of the two factors at that end: 0.3, 1, 3 continues with 9.
    """
    tried = sorted({point.factor for point in points})
    if len(tried) >= len(factors) + MOST_BEYOND:
        return None
    best = best_factor(points, order)
    if best == tried[-1]:
        return _rounded(tried[-1] * tried[-1] / tried[-2])
    if best == tried[0]:
        return _rounded(tried[0] * tried[0] / tried[1])
    return None


def best_factor(points: Sequence[TuningPoint], order: Order = ANY_ORDER) -> float:
    """Returns the factor with the best mean metric; of several, the one nearest to 1.

    A run that diverged or broke counts as the worst there is. With `by_time` the most hits come
    first, then the least mean time to target.
    """
    assert points

    def key(factor: float) -> tuple[float, ...]:
        own = [point for point in points if point.factor == factor]
        score = statistics.fmean(
            -math.inf if point.metric is None else order.sign * point.metric for point in own
        )
        by_metric = (score, -abs(math.log(factor)))
        if not order.by_time:
            return by_metric
        hits_s = [p.time_to_target_s for p in own if p.time_to_target_s is not None]
        return len(hits_s), -statistics.fmean(hits_s) if hits_s else 0.0, *by_metric

    return max(sorted({point.factor for point in points}), key=key)


def _rounded(factor: float) -> float:
    # Six digits: 0.1 × 3 is 0.30000000000000004 in binary, and factors name runs of the ledger.
    return float(f"{factor:.6g}")


def tuned_settings(recipe: Recipe, path: str, factor: float) -> Mapping[str, float]:
    """Returns what an arm sets in addition to its levels; nothing where the factor is 1.

    A count stays one: 32 times 0.3 is 10.
    """
    value = value_at(recipe, path)
    if factor == 1:
        return {}
    tuned = value * factor
    return {path: max(1, round(tuned)) if isinstance(value, int) else _rounded(tuned)}
