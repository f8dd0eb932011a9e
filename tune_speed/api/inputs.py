"""What a call may be given for a file: a dict of the file's form, a workload, overrides."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tune_speed.core.errors import ConfigError
from tune_speed.core.targets import Target
from tune_speed.custom.shipping import packed
from tune_speed.study import file as study_file
from tune_speed.study import yaml
from tune_speed.study.mistake import Mistake, shown
from tune_speed.training.workload import Workload

Tree = Mapping[str, Any]
Overrides = Mapping[str, Any] | Sequence[str]
"""`{"search.trials": 5}`, or `["search.trials=5"]` as on the command line."""


def study_from(
    space: str | Path | Tree,
    *,
    workload: str | Tree | Workload | None,
    overrides: Sequence[str],
    check_data: bool,
) -> study_file.StudyFile:
    """Returns the study of a file, a shipped one or a dict. Raises: ConfigError."""
    if isinstance(space, Mapping):
        source = source_of(space, workload, file="space")
        return study_file.study_of(source, overrides=overrides, check_data=check_data)
    every = [*workload_override(workload), *overrides]
    return study_file.load_study(space, overrides=every, check_data=check_data)


def own_study_from(
    space: str | Path | Tree,
    train: Callable[..., Any],
    *,
    target: float | Tree | Target | None,
    workload: str | Tree | Workload | None,
    overrides: Sequence[str],
) -> study_file.StudyFile:
    """Returns the study of a training function. Raises: ConfigError with every mistake."""
    if isinstance(workload, str | Workload):
        raise ConfigError(
            "workload must be a dict of target, mode and max_train_s for a training function, which"
            f" has data of its own, but got {workload!r:.80}."
        )
    loop = packed(train)
    given = [*workload_override(workload), *overrides, *target_override(target)]
    if isinstance(space, Mapping):
        source = source_of({"workload": {}, **_whole(space)}, None, file="space")
        _refuse_recipes(source)
        named = source if "study" in source.tree else source.with_value(("study",), loop.name)
        return study_file.own_study_of(named, loop, overrides=given)
    source = yaml.scan_file(study_file.find_file(space))
    if workload is None:
        _refuse_recipes(source)
    return study_file.own_study_of(source, loop, overrides=given)


def _refuse_recipes(source: yaml.Source) -> None:
    """Raises: ConfigError for a study with data of ours, whose recipes a function cannot take."""
    workload = source.tree.get("workload") if isinstance(source.tree, Mapping) else None
    if not isinstance(workload, str) and "dataset" not in (workload or ()):
        return
    mistake = Mistake(
        ("workload",),
        "must have only target, mode and max_train_s, as a training function has its own data",
        shown(workload),
        "To search recipes on these data, leave out the training function: --train, or train=.",
    )
    raise ConfigError(problems=(mistake.problem(source),))


def target_override(target: float | Tree | Target | None) -> list[str]:
    """Returns the override that puts the target in the place of a workload's."""
    if target is None:
        return []
    if isinstance(target, Target):
        target = target.model_dump(mode="json")
    tree = target if isinstance(target, Mapping) else {"value": target}
    return [_override("workload.target", tree)]


def _whole(tree: Tree) -> Tree:
    return tree if "recipe" in tree else {"recipe": tree}


def recipe_from(
    recipe: str | Path | Tree,
    *,
    workload: str | Tree | Workload | None,
    overrides: Sequence[str],
    check_data: bool,
) -> study_file.RecipeFile:
    """Returns the recipe of a file, a trial on record or a dict. Raises: ConfigError."""
    if isinstance(recipe, Mapping):
        source = source_of(recipe, workload, file="recipe")
        return study_file.recipe_of(source, overrides=overrides, check_data=check_data)
    every = [*workload_override(workload), *overrides]
    # It needs torch: a search, which reads its study here too, would start 1.2 s later.
    from tune_speed.experiments.rerun import load_rerun

    return load_rerun(str(recipe), overrides=every, check_data=check_data)


def source_of(tree: Tree, workload: str | Tree | Workload | None, *, file: str) -> yaml.Source:
    """Returns a dict as if read from a file, without line numbers. Raises: ConfigError."""
    whole: dict[str, Any] = dict(_whole(tree))
    if workload is not None:
        whole["workload"] = _workload_tree(workload)
    # By way of a file's text, so that a dict means exactly what its file would mean.
    source = yaml.scan_yaml(yaml.dump_yaml(_plain(whole, (), file)), file=file)
    # The lines would be those of a text that nobody has seen.
    return dataclasses.replace(source, places=dict.fromkeys(source.places, yaml.Place(file, None)))


def overrides_of(given: Overrides | None, **options: Any) -> list[str]:
    """Returns overrides as on the command line, then `options`; `__` in a name means a dot."""
    # A text is a sequence too: its characters would be taken for overrides.
    if isinstance(given, str):
        raise ConfigError(
            f'set must be a dict such as {{"search.trials": 5}}, or a list, but got {given!r}.'
        )
    pairs = given.items() if isinstance(given, Mapping) else ()
    texts = [_override(path, value) for path, value in pairs] or list(given or ())
    named = {name.replace("__", "."): value for name, value in options.items()}
    return texts + [_override(path, v) for path, v in named.items() if v is not None]


def _override(path: str, value: Any) -> str:
    # JSON is YAML, and its quotes keep a text that looks like a number a text.
    return f"{path}={json.dumps(_plain(value, (path,), 'set'))}"


def workload_override(workload: str | Tree | Workload | None) -> list[str]:
    """Returns the override that puts the workload in the place of a file's."""
    return [] if workload is None else [_override("workload", _workload_tree(workload))]


def _workload_tree(workload: str | Tree | Workload) -> str | Tree:
    return workload.model_dump(mode="json") if isinstance(workload, Workload) else workload


def _plain(value: Any, path: yaml.TreePath, file: str) -> Any:
    """Returns `value` as YAML reads it. Raises: ConfigError for what no file can hold."""
    # A dict may hold itself: without a bound this would not end but by a RecursionError.
    if len(path) > yaml.MAX_DEPTH:
        raise _not_plain(value, path, file, f"must be nested at most {yaml.MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _not_plain(key, path, file, "must have keys that are text")
        return {str(key): _plain(each, (*path, str(key)), file) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, (*path, index), file) for index, each in enumerate(value)]
    if isinstance(value, Workload):
        return value.model_dump(mode="json")
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # A number of NumPy's or torch's.
    if isinstance(value, float) and not math.isfinite(value):
        raise _not_plain(value, path, file, "must be a finite number")
    # Exactly these types: PyYAML's safe dumper has no form for a subclass of them.
    if value is None or type(value) in (bool, int, float, str):
        return value
    must = "must be a dict, a list, text, a number, a boolean or None"
    raise _not_plain(value, path, file, must)


def _not_plain(value: Any, path: yaml.TreePath, file: str, must: str) -> ConfigError:
    # Cut, as the value may be a whole array.
    return ConfigError.of(yaml.dotted(path), must, given=repr(value)[:200], file=file)
