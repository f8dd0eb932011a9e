"""The study of a training function: its own values are searched, and its own target is to be met.

The form is that of a study file; `workload` has no data, and `recipe` may hold any names.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from tune_speed.core.config import Config
from tune_speed.core.targets import Task
from tune_speed.custom.shipping import Loop
from tune_speed.custom.spec import OwnTask
from tune_speed.study.fields import config_mistakes, name_mistakes
from tune_speed.study.file import StudyFile, checked, searched_file
from tune_speed.study.mistake import Mistake, shown
from tune_speed.study.overrides import apply_overrides
from tune_speed.study.schema import STUDY_NAME
from tune_speed.study.settings import CertifyConfig, SearchConfig, TrackingConfig
from tune_speed.study.space import SearchSpace, node_mistakes, point_mistakes
from tune_speed.study.validation import grid_mistakes, policy_mistakes, section_mistakes
from tune_speed.study.yaml import Source

_FIXED = "only the values under `recipe` are searched"


class OwnStudySchema(Config):
    """What a training function is to reach, with which values, and how to search them."""

    study: Annotated[str, Field(pattern=STUDY_NAME)] | None = None
    """Name of the study; null: the function's."""
    workload: Task
    """What must be reached, and in which time."""
    recipe: dict[str, Any]
    """What the function is called with; any value in it may be searched."""
    search: SearchConfig | None = None
    """How the space is searched."""
    certify: CertifyConfig | None = None
    """How the best trials are run again on fresh seeds; null: they are not."""


def own_study_of(source: Source, loop: Loop, *, overrides: Sequence[str] = ()) -> StudyFile:
    """Returns the study of a tree and a training function.

    Raises: ConfigError with every mistake of the tree and of the overrides.
    """
    source, problems = apply_overrides(source, overrides, schema=OwnStudySchema)
    source = checked(source, problems, _mistakes(source.tree))
    made_by = {"function": loop.name, "function_hash": loop.source_hash}
    task = OwnTask.model_validate({**source.tree["workload"], **made_by})
    return searched_file(source, workload=task, run=None, tracking=TrackingConfig(), loop=loop)


def _mistakes(tree: Any) -> Iterator[Mistake]:
    if not isinstance(tree, Mapping):
        yield from config_mistakes(OwnStudySchema, tree, ())
        return
    yield from name_mistakes(OwnStudySchema, tree, ())
    sections = [name for name in OwnStudySchema.model_fields if name in tree]
    wrong = {name: list(_section(name, tree[name])) for name in sections}
    for mistakes in wrong.values():
        yield from mistakes
    if wrong.get("recipe") == [] and not wrong.get("search"):
        yield from _search_mistakes(SearchSpace.from_tree(tree["recipe"]), tree.get("search") or {})


def _section(name: str, value: Any) -> Iterator[Mistake]:
    if name == "recipe":
        if isinstance(value, Mapping) and value:
            yield from node_mistakes(value, ("recipe",))
        else:
            must = "must be a mapping from names to values or ranges"
            yield Mistake(("recipe",), must, shown(value))
        return
    yield from section_mistakes(OwnStudySchema, name, value, fixed=_FIXED)


def _search_mistakes(space: SearchSpace, search: Mapping[str, Any]) -> Iterator[Mistake]:
    points = search.get("points_to_evaluate", ())
    yield from point_mistakes(space, points, ("search", "points_to_evaluate"))
    if search.get("sampler") == "grid":
        yield from grid_mistakes(space)
    yield from policy_mistakes(search)
    if search.get("concurrent") == "auto":
        must = "must be a number for a training function, whose steps nobody can measure beforehand"
        yield Mistake(("search", "concurrent"), must, '"auto"')
    if search.get("warm_start"):
        must = "must be left out for a training function: nobody knows whose data are the same"
        yield Mistake(("search", "warm_start"), must, shown(search["warm_start"]))
