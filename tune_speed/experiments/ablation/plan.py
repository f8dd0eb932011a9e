"""Plan of an ablation: each arm as a recipe of its own, validated before the first of them runs."""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.experiments.ablation.design import BASE, Arm, Axis, arms_of, read_axes, settings_of
from tune_speed.experiments.rerun import load_rerun
from tune_speed.runtime.device import resolve_device
from tune_speed.study.file import RecipeFile
from tune_speed.study.settings import AblateConfig
from tune_speed.training.applicability import not_applicable

Load = Callable[[Sequence[str]], RecipeFile]
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


def plan_ablation(source: str, *, overrides: Sequence[str], check_data: bool) -> AblationPlan:
    """Takes a recipe file, or a trial named by MLflow run id or STUDY/TRIAL.

    Raises: ConfigError with every mistake, of the file and of arms.
    """

    # Most arms are read alone first, and then again as an arm of the design.
    @functools.cache
    def loaded(more: tuple[str, ...]) -> RecipeFile:
        return load_rerun(source, overrides=[*overrides, *more], check_data=check_data)

    def load(more: Sequence[str]) -> RecipeFile:
        return loaded(tuple(more))

    base = load(())
    if base.ablate is None:
        raise ConfigError(
            f"{base.file} must say what is to be changed, but has no section `ablate`. Try"
            " `--axes accumulation_steps=2,precision=bf16`."
        )
    axes = read_axes(base.ablate.axes)
    # What is wrong with the design is so on any machine, whatever can be run here.
    arms_of(axes, base.ablate.design)
    singles = arms_of(axes, "one-at-a-time")

    def load_anywhere(more: Sequence[str]) -> RecipeFile:
        try:
            return load(more)
        except ConfigError:
            # The arm may need a device that is not here.
            file = load([*more, "run.device=auto"])
            return replace(file, run=file.run.model_copy(update={"device": base.run.device}))

    alone = _files(singles, axes, load_anywhere)
    reasons = {arm.name: _reason(alone[arm.name], base) for arm in singles[1:]}
    absent = tuple(arm for arm in singles[1:] if reasons[arm.name] is not None)
    left = tuple(_without(axes, absent))
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
            **{arm.name: dict(settings_of(arm, left)) for arm in arms},
            **{arm.name: dict(settings_of(arm, axes)) for arm in absent},
        },
        absent=absent,
        not_applicable={arm.name: str(reasons[arm.name]) for arm in absent},
        load=load,
    )


def overrides_of(settings: Iterable[tuple[str, Any]]) -> list[str]:
    """Returns settings as `path=value`, in their order: a later one may replace an earlier one."""
    return [f"{path}={json.dumps(value)}" for path, value in settings]


def _files(arms: Sequence[Arm], axes: Sequence[Axis], load: Load) -> dict[str, RecipeFile]:
    files: dict[str, RecipeFile] = {}
    problems: dict[Problem, None] = {}
    for arm in arms:
        try:
            files[arm.name] = load(overrides_of(settings_of(arm, axes)))
        except ConfigError as error:
            if arm.name == BASE or not error.problems:
                raise
            for problem in error.problems:
                place = problem.file or ""
                # A problem of a setting of the arm's names that setting.
                is_own = place.startswith("--set")
                named = f"arm {arm.name}{', ' if place else ''}{place}"
                problems[problem if is_own else replace(problem, file=named)] = None
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
            " another value, or set the base's with --set."
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


def _without(axes: Sequence[Axis], absent: Sequence[Arm]) -> Iterator[Axis]:
    gone = {arm.levels for arm in absent}
    for number, axis in enumerate(axes):
        alone = [0] * len(axes)
        levels = []
        for alone[number], level in enumerate(axis.levels, start=1):
            if tuple(alone) not in gone:
                levels.append(level)
        if levels:
            yield Axis(axis.name, tuple(levels))
