"""Plan of an ablation: each arm as a recipe of its own, checked before the first of them runs.

Where a number is re-tuned for each arm, because a stale rate would be compared else, the factors
to try follow from those that ran.
"""

import functools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from tune_speed.core.comparability import sign_of
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.core.text import SET, option
from tune_speed.experiments.ablation.design import BASE, Arm, Axis, arms_of, read_axes, settings_of
from tune_speed.experiments.ablation.result import TuningPoint
from tune_speed.experiments.rerun import load_rerun
from tune_speed.runtime.device import resolve_device
from tune_speed.study.file import RecipeFile
from tune_speed.study.settings import AblateConfig
from tune_speed.training.recipe import Recipe, not_applicable

Load = Callable[..., RecipeFile]
"""Returns the base's file with further `path=value` overrides."""
# Designs of combinations take so many; with fewer left, each is run alone.
LEAST_AXES = 2


@dataclass(frozen=True, kw_only=True)
class AblationPlan:
    """What will be run."""

    config: AblateConfig
    base: RecipeFile
    axes: tuple[Axis, ...]
    """Those with a level that can be run here, and only such levels."""
    arms: tuple[Arm, ...]
    """Combinations of their levels, the base first."""
    files: Mapping[str, RecipeFile]
    settings: Mapping[str, Mapping[str, Any]]
    absent: tuple[Arm, ...]
    """Levels of the file's axes, alone, that have no effect here or cannot be run."""
    not_applicable: Mapping[str, str]
    """Why, by the arm's name."""
    load: Load

    @property
    def order(self) -> "Order":
        workload = self.base.workload
        return Order(by_time=workload.mode == "anytime", sign=sign_of(workload.target))

    def tuned_file(self, name: str, factor: float) -> RecipeFile:
        """Returns an arm's recipe with its re-tuned number times `factor`.

        Raises: ConfigError if the recipe refuses it.
        """
        file, retune = self.files[name], self.config.retune
        more = tuned_settings(file.recipe, retune, factor) if retune else {}
        arm = next(arm for arm in self.arms if arm.name == name)
        given = [*settings_of(arm, self.axes), *more.items()]
        return self.load(*overrides_of(given)) if more else file


def plan_ablation(source: str, *, overrides: Sequence[str], check_data: bool) -> AblationPlan:
    """Takes a recipe file, or a trial named by MLflow run id or STUDY/TRIAL.

    Raises: ConfigError with every mistake, of the file and of arms.
    """

    # Most arms are read alone first, and then again as an arm of the design.
    @functools.cache
    def load(*more: str) -> RecipeFile:
        return load_rerun(source, overrides=[*overrides, *more], check_data=check_data)

    base = load()
    if base.ablate is None:
        raise ConfigError(
            f"{base.file} must say what is to be changed, but has no section `ablate`. Try"
            " `--axes accumulation_steps=2,precision=bf16`."
        )
    axes = read_axes(base.ablate.axes)
    # What is wrong with the design is so on any machine, whatever can be run here.
    arms_of(axes, base.ablate.design)
    singles = arms_of(axes, "one-at-a-time")

    def load_anywhere(*more: str) -> RecipeFile:
        try:
            return load(*more)
        except ConfigError:
            # The arm may need a device that is not here.
            file = load(*more, "run.device=auto")
            return replace(file, run=file.run.model_copy(update={"device": base.run.device}))

    alone = _files(singles, axes, load_anywhere)
    reasons = {arm.name: _reason(alone[arm.name], base) for arm in singles[1:]}
    absent = tuple(arm for arm in singles[1:] if reasons[arm.name] is not None)
    gone = {arm.name for arm in absent}
    kept = [(a, tuple(level for level in a.levels if level.label not in gone)) for a in axes]
    left = tuple(axis._replace(levels=levels) for axis, levels in kept if levels)
    design = base.ablate.design
    if len(left) < LEAST_AXES and design not in ("one-at-a-time", "factorial"):
        design = "one-at-a-time"
    arms = arms_of(left, design) if left else (Arm(BASE, ()),)
    return AblationPlan(
        config=base.ablate,
        base=base,
        axes=left,
        arms=arms,
        files=_files(arms, left, load),
        settings={
            arm.name: dict(settings_of(arm, of))
            for of, some in ((left, arms), (axes, absent))
            for arm in some
        },
        absent=absent,
        not_applicable={arm.name: str(reasons[arm.name]) for arm in absent},
        load=load,
    )


def overrides_of(settings: Iterable[tuple[str, Any]]) -> list[str]:
    return [f"{path}={json.dumps(value)}" for path, value in settings]


def _files(arms: Sequence[Arm], axes: Sequence[Axis], load: Load) -> dict[str, RecipeFile]:
    files: dict[str, RecipeFile] = {}
    problems: dict[Problem, None] = {}
    for arm in arms:
        try:
            files[arm.name] = load(*overrides_of(settings_of(arm, axes)))
        except ConfigError as error:
            if arm.name == BASE or not error.problems:
                raise
            for problem in error.problems:
                place = ", ".join(filter(None, [f"arm {arm.name}", problem.file]))
                # A problem of a setting of the arm's names that setting.
                is_own = (problem.file or "").startswith(SET)
                problems[problem if is_own else replace(problem, file=place)] = None
    if problems:
        raise ConfigError("Every arm must be a recipe.", problems=tuple(problems))
    base = files[BASE]
    same = [
        name
        for name, file in files.items()
        if name != BASE and (file.recipe, file.run) == (base.recipe, base.run)
    ]
    if same:
        raise ConfigError(
            f"every axis must change the recipe, but {', '.join(same)} is what the base has. Give"
            f" another value, or set the base's with {option('set')}."
        )
    return files


def _reason(file: RecipeFile, base: RecipeFile) -> str | None:
    try:
        device = resolve_device(file.run.device)
    except ConfigError:
        return f"device {file.run.device} is not there"
    return not_applicable(
        file.recipe, base.recipe, device=device, num_devices=torch.cuda.device_count()
    )


# --- Re-tuning


SHORT_NAMES = {"lr": "optimizer.lr"}
# Factors that may be added where the best one lies at an end of those that were tried.
MOST_BEYOND = 2


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
    """Returns the next of `factors`; then, while the best one is at an end, one beyond it.

    The step is that of the last two: where 3 is the best of 0.3, 1, 3 comes 9.
    """
    tried = sorted({point.factor for point in points})
    if len(tried) < len(factors):
        return factors[len(tried)]
    best = best_factor(points, order)
    if best not in (tried[0], tried[-1]) or len(tried) >= len(factors) + MOST_BEYOND:
        return None
    return _rounded(best * best / tried[1 if best == tried[0] else -2])


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


def tuned_settings(recipe: Recipe, name: str, factor: float) -> Mapping[str, float]:
    """Nothing where the factor is 1; a count stays one: 32 times 0.3 is 10."""
    path = SHORT_NAMES.get(name, name)
    value = value_at(recipe, path)
    if factor == 1:
        return {}
    tuned = value * factor
    return {path: max(1, round(tuned)) if isinstance(value, int) else _rounded(tuned)}
