"""Study files: read, overridden, checked whole, and made into a `StudyFile` or a `RecipeFile`."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, DataError, Problem
from tune_speed.core.folders import STUDY_NAME, shipped_folder
from tune_speed.core.targets import Task
from tune_speed.custom.shipping import Loop
from tune_speed.custom.spec import OwnTask
from tune_speed.study import settings, short_forms, validation
from tune_speed.study.fields import config_mistakes, name_mistakes
from tune_speed.study.mistake import Mistake, left_mistakes, near_miss, shown
from tune_speed.study.overrides import apply_overrides
from tune_speed.study.schema import StudySchema
from tune_speed.study.space import SearchSpace, node_mistakes, point_mistakes
from tune_speed.study.yaml import MAX_PROBLEMS, Source, scan_file, scan_yaml
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import KeepWeights
from tune_speed.training.workload import WORKLOADS, Workload


def shipped_files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(shipped_folder().glob("*.yaml"))}


def is_file(path: Path | str) -> bool:
    """Returns whether there is such a file; False too for what no file can be called."""
    try:
        # Not `isfile`, which is false for a pipe: `<(...)` may be a study too.
        return os.path.exists(path) and not os.path.isdir(path)
    except ValueError:  # A NUL.
        return False


def find_file(path_or_name: Path | str) -> Path:
    """Returns the path of a file, or else of the shipped file of that name. Raises: ConfigError."""
    # A call may be given anything.
    path = Path(str(path_or_name))
    if is_file(path):
        return path
    shipped = shipped_files()
    if str(path_or_name) in shipped:
        return shipped[str(path_or_name)]
    hint = near_miss(path.name, _files_beside(path)) or near_miss(path.stem, shipped)
    hint = hint or f"Shipped are {', '.join(shipped)}."
    must = "must be a file, or the name of a shipped one"
    raise ConfigError.of("", must, given=str(path_or_name), hint=hint)


def _files_beside(path: Path) -> list[str]:
    try:
        return [each.name for each in path.parent.iterdir() if each.suffix in (".yaml", ".yml")]
    except (OSError, ValueError):
        return []


class OwnStudySchema(Config):
    """What a training function is to reach, with which values, and how to search them."""

    study: Annotated[str, Field(pattern=STUDY_NAME)] | None = None
    """Name of the study; null: the function's."""
    workload: Task
    """What must be reached, and in which time."""
    goal: short_forms.GoalConfig | None = None
    """The best value of a metric within a training time, in place of a target."""
    recipe: dict[str, Any]
    """What the function is called with; any value in it may be searched."""
    search: settings.SearchConfig | None = None
    """How the space is searched."""
    certify: settings.CertifyConfig | None = None
    """How the best trials are run again on fresh seeds; null: they are not."""


AnyConfig = TypeVar("AnyConfig", bound=Config)


@dataclass(frozen=True, kw_only=True)
class _File:
    name: str
    tree: Mapping[str, Any]
    """The file's tree, overrides put in."""
    text: str
    file: str


@dataclass(frozen=True, kw_only=True)
class StudyFile(_File):
    """What `tune-speed search` needs."""

    workload: Workload | OwnTask
    space: SearchSpace
    search: settings.SearchConfig
    certify: settings.CertifyConfig | None
    run: settings.RunConfig | None
    tracking: settings.TrackingConfig
    source: Source
    """The tree with the place of each value, for messages."""
    loop: Loop | None = None
    """The training function; None where recipes are searched."""


@dataclass(frozen=True, kw_only=True)
class RecipeFile(_File):
    """What `tune-speed train` needs."""

    workload: Workload
    recipe: Recipe
    run: settings.RunConfig
    ablate: settings.AblateConfig | None
    keep: KeepWeights | None = None
    """Where the best run's network goes; None: it is not kept."""


def load_study(
    path_or_name: Path | str, *, overrides: Sequence[str] = (), check_data: bool = True
) -> StudyFile:
    """Returns the study of a file or name; `check_data` reads its data. Raises: ConfigError."""
    return study_of(scan_file(find_file(path_or_name)), overrides=overrides, check_data=check_data)


def study_of(
    source: Source, *, overrides: Sequence[str] = (), check_data: bool = True
) -> StudyFile:
    """Returns the study of a tree. As `load_study` otherwise."""
    source, problems = _resolved(source, overrides)
    source = _checked(source, problems, validation.study_mistakes(source, check_data=check_data))
    return _searched_file(
        source,
        workload=Workload.model_validate(source.tree["workload"]),
        run=_optional(settings.RunConfig, source.tree.get("run")),
        tracking=settings.TrackingConfig.model_validate(source.tree.get("tracking") or {}),
    )


def _searched_file(source: Source, **own: Any) -> StudyFile:
    tree = source.tree
    return StudyFile(
        **_named(source),
        space=SearchSpace.from_tree(tree["recipe"]),
        search=settings.SearchConfig.model_validate(tree.get("search") or {}),
        certify=_optional(settings.CertifyConfig, tree.get("certify")),
        source=source,
        **own,
    )


def _named(source: Source) -> dict[str, Any]:
    name = source.tree.get("study") or source.stem
    return {"name": name, "tree": source.tree, "text": source.text, "file": str(source.file)}


def load_recipe(
    path_or_name: Path | str, *, overrides: Sequence[str] = (), check_data: bool = True
) -> RecipeFile:
    """Returns the recipe of a file in which nothing is searched; as `load_study` otherwise."""
    return recipe_of(scan_file(find_file(path_or_name)), overrides=overrides, check_data=check_data)


def parse_recipe(
    text: str, *, file: str, overrides: Sequence[str] = (), check_data: bool = True
) -> RecipeFile:
    """Returns the recipe of a text; `file` is only named. As `load_recipe` otherwise."""
    return recipe_of(scan_yaml(text, file=file), overrides=overrides, check_data=check_data)


def recipe_of(
    source: Source, *, overrides: Sequence[str] = (), check_data: bool = True
) -> RecipeFile:
    """Returns the recipe of a tree. As `load_recipe` otherwise."""
    source, problems = _resolved(source, overrides)
    tree = _checked(
        source, problems, validation.recipe_mistakes(source, check_data=check_data)
    ).tree
    return RecipeFile(
        **_named(source),
        workload=Workload.model_validate(tree["workload"]),
        recipe=Recipe.model_validate(tree["recipe"]),
        run=settings.RunConfig.model_validate(tree.get("run") or {}),
        ablate=_optional(settings.AblateConfig, tree.get("ablate")),
    )


def refuse_left(source: Source) -> None:
    """Raises a ConfigError, of a line each, for settings that this version no longer has."""
    if problems := tuple(mistake.problem(source) for mistake in left_mistakes(source)):
        raise ConfigError(problems=problems)


def _resolved(source: Source, overrides: Sequence[str]) -> tuple[Source, list[Problem]]:
    refuse_left(source)
    twice = [mistake.problem(source) for mistake in short_forms.goal_mistakes(source)]
    # Written out before, so that an override can change one field of a built-in workload.
    source = short_forms.with_locations(_written_out(source), shipped=shipped_folder())
    source, problems = apply_overrides(source, overrides, schema=StudySchema)
    refuse_left(source)
    # Again, as an override may be a short form.
    return short_forms.with_store_size(short_forms.with_goal(_written_out(source))), [
        *twice,
        *problems,
    ]


def _written_out(source: Source) -> Source:
    name = source.tree.get("workload") if isinstance(source.tree, Mapping) else None
    if isinstance(name, str) and name in WORKLOADS:
        source = source.with_value(("workload",), WORKLOADS[name].model_dump(mode="json"))
    return short_forms.with_choices(short_forms.with_whole_task(source))


def _checked(source: Source, problems: Sequence[Problem], mistakes: Iterable[Mistake]) -> Source:
    """Returns `source`. Raises: ConfigError with every mistake; DataError for data alone."""
    found = [mistake.problem(source) for mistake in mistakes]
    # A value that could not be read has become a null, which the schema reports again.
    unread = {problem.line for problem in source.problems}
    found = [p for p in found if not (p.given == "null" and p.line in unread)]
    every = dict.fromkeys([*source.problems, *problems, *found])
    if every and all(problem.is_data for problem in every):
        raise DataError("\n".join(map(str, every)))
    if every:
        # Those of overrides, which have no line, come after those of the file.
        in_order = sorted(every, key=lambda p: (p.line is None, p.line or 0))
        rest = len(in_order) - MAX_PROBLEMS
        more = f"The first {MAX_PROBLEMS} mistakes; {rest} more follow them:" if rest > 0 else ""
        raise ConfigError(more, problems=tuple(in_order[:MAX_PROBLEMS]))
    return source


def _optional(kind: type[AnyConfig], fields: Any) -> AnyConfig | None:
    return None if fields is None else kind.model_validate(fields)


def own_study_of(source: Source, loop: Loop, *, overrides: Sequence[str] = ()) -> StudyFile:
    """Returns the study of a tree and a training function. Raises: ConfigError."""
    refuse_left(source)
    twice = [mistake.problem(source) for mistake in short_forms.goal_mistakes(source)]
    whole = short_forms.with_whole_task(source)
    source, problems = apply_overrides(whole, overrides, schema=OwnStudySchema)
    refuse_left(source)
    source = short_forms.with_goal(short_forms.with_whole_task(source))
    source = _checked(source, [*twice, *problems], _own_mistakes(source.tree))
    made_by = {"function": loop.name, "function_hash": loop.source_hash}
    task = OwnTask.model_validate({**source.tree["workload"], **made_by})
    return _searched_file(
        source, workload=task, run=None, tracking=settings.TrackingConfig(), loop=loop
    )


def _own_mistakes(tree: Any) -> Iterator[Mistake]:
    if not isinstance(tree, Mapping):
        yield from config_mistakes(OwnStudySchema, tree, ())
        return
    yield from name_mistakes(OwnStudySchema, tree, ())
    sections = [name for name in OwnStudySchema.model_fields if name in tree]
    wrong = {name: list(_own_section(name, tree[name])) for name in sections}
    for mistakes in wrong.values():
        yield from mistakes
    if wrong.get("recipe") == [] and not wrong.get("search"):
        yield from _own_search_mistakes(
            SearchSpace.from_tree(tree["recipe"]), tree.get("search") or {}
        )


def _own_section(name: str, value: Any) -> Iterator[Mistake]:
    if name == "recipe":
        if isinstance(value, Mapping) and value:
            yield from node_mistakes(value, ("recipe",))
        else:
            must = "must be a mapping from names to values or ranges"
            yield Mistake(("recipe",), must, shown(value))
        return
    yield from validation.section_mistakes(
        OwnStudySchema, name, value, fixed="only the values under `recipe` are searched"
    )


def _own_search_mistakes(space: SearchSpace, search: Mapping[str, Any]) -> Iterator[Mistake]:
    points = search.get("points_to_evaluate", ())
    yield from point_mistakes(space, points, ("search", "points_to_evaluate"))
    if search.get("sampler") == "grid":
        yield from validation.grid_mistakes(space)
    yield from validation.policy_mistakes(search)
    if search.get("concurrent") == "auto":
        must = "must be a number for a training function, whose steps nobody can measure beforehand"
        yield Mistake(("search", "concurrent"), must, '"auto"')
    if search.get("warm_start"):
        must = "must be left out for a training function: nobody knows whose data are the same"
        yield Mistake(("search", "warm_start"), must, shown(search["warm_start"]))
