"""What an ablation will run: the arms as recipes of their own, checked before the first of them."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.experiments.ablation.axes import Axis, read_axes
from tune_speed.experiments.ablation.design import BASE, Arm, Design, arms_of, settings_of
from tune_speed.experiments.rerun import load_rerun
from tune_speed.runtime.device import resolve_device
from tune_speed.study.file import RecipeFile
from tune_speed.study.settings import AblateConfig
from tune_speed.training.applicability import not_applicable

Load = Callable[[Sequence[str]], RecipeFile]
"""Returns the base's file with further `path=value` overrides."""
LEAST_AXES = 2
"""Designs of combinations take so many; with fewer left, each is run alone."""


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
    """Each arm's recipe."""
    settings: Mapping[str, Mapping[str, Any]]
    """What each arm sets, by path."""
    all_axes: tuple[Axis, ...]
    """All that were asked for."""
    absent: tuple[Arm, ...]
    """Levels of these, alone, that have no effect here or cannot be run."""
    not_applicable: Mapping[str, str]
    """Why, by the arm's name."""
    load: Load


def plan_ablation(source: str, *, overrides: Sequence[str], check_data: bool) -> AblationPlan:
    """Returns the plan of a recipe file, or of a trial named by MLflow run id or STUDY/TRIAL.

    Raises: ConfigError with every mistake, of the file and of arms.
    """

    def load(more: Sequence[str]) -> RecipeFile:
        return load_rerun(source, overrides=[*overrides, *more], check_data=check_data)

    base = load(())
    if base.ablate is None:
        raise ConfigError(
            f"{base.file} must say what is to be changed, but has no section `ablate`. Try"
            " `--axes accumulation_steps=2,precision=bf16`."
        )
    axes = read_axes(base.ablate.axes)
    arms_of(axes, base.ablate.design)  # What is wrong with the design is so on any machine.
    singles = arms_of(axes, "one-at-a-time")
    alone = _files(singles, axes, partial(_load_anywhere, load, base))
    reasons = {arm.name: _reason(alone[arm.name], base) for arm in singles[1:]}
    absent = tuple(arm for arm in singles[1:] if reasons[arm.name] is not None)
    left = tuple(_without(axes, absent))
    arms = _arms(left, base.ablate.design)
    return AblationPlan(
        config=base.ablate,
        base=base,
        axes=left,
        arms=arms,
        files=_files(arms, left, load),
        settings={arm.name: dict(settings_of(arm, left)) for arm in arms},
        all_axes=axes,
        absent=absent,
        not_applicable={arm.name: str(reasons[arm.name]) for arm in absent},
        load=load,
    )


def _load_anywhere(load: Load, base: RecipeFile, overrides: Sequence[str]) -> RecipeFile:
    """Returns an arm's file though it may need a device that the base does not have."""
    try:
        return load(overrides)
    except ConfigError:
        file = load([*overrides, "run.device=auto"])
        return replace(file, run=file.run.model_copy(update={"device": base.run.device}))


def overrides_of(settings: Iterable[tuple[str, Any]]) -> list[str]:
    """Returns settings as `path=value`, in their order: a later one may replace an earlier one."""
    return [f"{path}={json.dumps(value)}" for path, value in settings]


def _files(arms: Sequence[Arm], axes: Sequence[Axis], load: Load) -> dict[str, RecipeFile]:
    """Returns each arm's recipe. Raises: ConfigError with what is wrong with any of them."""
    files: dict[str, RecipeFile] = {}
    problems: dict[Problem, None] = {}
    for arm in arms:
        try:
            files[arm.name] = load(overrides_of(settings_of(arm, axes)))
        except ConfigError as error:
            if arm.name == BASE or not error.problems:
                raise
            problems |= dict.fromkeys(_of_arm(problem, arm) for problem in error.problems)
    if problems:
        raise ConfigError("Every arm must be a recipe.", problems=tuple(problems))
    same = [a.name for a in arms if a.name != BASE and _is_same(files[a.name], files[BASE])]
    if same:
        raise ConfigError(
            f"every axis must change the recipe, but {', '.join(same)} is what the base has. Give"
            " another value, or set the base's with --set."
        )
    return files


def _is_same(file: RecipeFile, base: RecipeFile) -> bool:
    return file.recipe == base.recipe and file.run == base.run


def _of_arm(problem: Problem, arm: Arm) -> Problem:
    """Returns the problem with the arm's name, unless its own setting is what is named."""
    place = problem.file or ""
    if place.startswith("--set"):
        return problem
    return replace(problem, file=f"arm {arm.name}{', ' if place else ''}{place}")


def _reason(file: RecipeFile, base: RecipeFile) -> str | None:
    try:
        device = resolve_device(file.run.device)
    except ConfigError:
        return f"device {file.run.device} is not there"
    return not_applicable(
        file.recipe, base.recipe, device=device, num_devices=torch.cuda.device_count()
    )


def _without(axes: Sequence[Axis], absent: Sequence[Arm]) -> Iterator[Axis]:
    """Yields the axes with the levels that can be run here."""
    gone = {arm.levels for arm in absent}
    for number, axis in enumerate(axes):
        levels = [
            level
            for index, level in enumerate(axis.levels, start=1)
            if _alone(number, index, len(axes)) not in gone
        ]
        if levels:
            yield Axis(axis.name, tuple(levels))


def _alone(number: int, index: int, num_axes: int) -> tuple[int, ...]:
    """Returns the levels of the arm that has one level of one axis only."""
    return tuple(index if axis == number else 0 for axis in range(num_axes))


def _arms(axes: tuple[Axis, ...], design: Design) -> tuple[Arm, ...]:
    if not axes:
        return (Arm(BASE, ()),)
    is_short = len(axes) < LEAST_AXES and design not in ("one-at-a-time", "factorial")
    return arms_of(axes, "one-at-a-time" if is_short else design)
