"""What a form carries of a recipe and its workload; what it does not is named, and refused."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from tune_speed.components.speedups.chosen import Speedups
from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, DataError, Problem
from tune_speed.study.fields import component_of
from tune_speed.study.file import RecipeFile

ONLY: Mapping[str, tuple[Any, ...]] = {
    "recipe.optimizer": ("sgd", "adam", "adamw"),
    "recipe.optimizer.*.lr_scales": ([],),
    "recipe.optimizer.sgd.decoupled_weight_decay": (False,),
    "recipe.devices": (1,),
    "recipe.precision": ("fp32", "bf16", "fp16"),
    "recipe.order": ("shuffle",),
    **{f"recipe.speedups.{slot}": ("off",) for slot in Speedups.model_fields},
    "recipe.augmentation.auto": ("off",),
    # Its amounts; its `probability` alone changes nothing.
    "recipe.augmentation.color_jitter.[!p]*": (0.0,),
    "recipe.augmentation.erasing.probability": (0.0,),
    "recipe.augmentation.mixup": (0.0,),
    "recipe.augmentation.cutmix": (0.0,),
    "recipe.augmentation.mixup_prob": (1.0,),
    "recipe.augmentation.mixup_switch_prob": (0.5,),
    "recipe.class_weights": ("none",),
    "recipe.head_lr_scale": (1.0,),
    "recipe.freeze": (None,),
    "recipe.reinit_head": (False,),
    "workload.split.long_tail": (None,),
    "workload.dataset.*.store": ("auto", "pixels"),
}
"""What every form asks of fields: values, or entries of a component."""
CARRIED = (
    *("recipe.model.*", "recipe.optimizer.*", "recipe.lr_schedule.*", "recipe.epochs"),
    *("recipe.*batch_size", "recipe.accumulation_steps", "recipe.matmul_precision"),
    *("recipe.drop_last", "recipe.label_smoothing", "recipe.clip_*", "recipe.channels_last"),
    *("recipe.compile*", "workload.target.*", "workload.max_train_s", "workload.dataset.*"),
    *("workload.split.*", "workload.certify_on", "workload.name"),
    *("recipe.augmentation.color_jitter.probability", "recipe.augmentation.erasing.*"),
)
"""Fields that every form carries, with any value."""


WINDOWS = ("recipe.*_size", "recipe.crop_pct", "recipe.augmentation.crop*")
"""Fields that say which windows of stored images the network sees, and at which size."""


class Setting(NamedTuple):
    """A field with its value, or a component with its entry's name."""

    path: str
    value: Any
    is_default: bool
    is_entry: bool = False
    """Whether the value is the name of an entry, whose fields follow."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of export; paths are patterns as of shells, the first that fits counts."""

    name: str
    """As in `cannot be carried by a plain script`."""
    only: Mapping[str, tuple[Any, ...]]
    """Values that a field may have, or entries of a component."""
    carried: tuple[str, ...]
    other_speed: tuple[str, ...] = ()
    """Fields that change how fast a run is, and nothing that it learns: they are left out."""

    def problem(self, setting: Setting) -> Problem | None:
        path, value, is_default, _ = setting
        may_be = next((v for pattern, v in self.only.items() if fnmatchcase(path, pattern)), None)
        if may_be is None:
            known = (*self.carried, *self.other_speed)
            if is_default or any(fnmatchcase(path, pattern) for pattern in known):
                return None
        elif value in may_be:
            return None
        among = ", ".join(map(_written, may_be)) if may_be else "its default"
        return Problem(path=path, must=f"must be {among} in {self.name}", given=_written(value))

    def left_out(self, file: RecipeFile) -> list[str]:
        return [
            f"{path}={_written(value)}"
            for path, value, is_default, _ in settings_of(file)
            if not is_default and any(fnmatchcase(path, p) for p in self.other_speed)
        ]


def refuse_what_is_lost(form: Form, file: RecipeFile, *, more: Iterable[Problem] = ()) -> None:
    """Raises: ConfigError that names every field that the form cannot carry, and `more`."""
    refused = list[str]()
    problems = list[Problem]()
    for setting in settings_of(file):
        # Of an entry that the form does not know, its name says all.
        if any(setting.path.startswith(f"{path}.") for path in refused):
            continue
        if problem := form.problem(setting):
            problems.append(problem)
            refused += [setting.path] if setting.is_entry else []
    problems += more
    with suppress(DataError):  # Of data that are elsewhere.
        if file.workload.dataset.num_validation():
            must = f"must leave the validation part to be cut off in {form.name}"
            problems.append(Problem(path="workload.dataset", must=must, given="one of its own"))
    if problems:
        name = form.name[0].upper() + form.name[1:]
        head = f"{name} cannot carry this recipe; `--export FILE.yaml` can."
        raise ConfigError(head, problems=tuple(problems))


def settings_of(file: RecipeFile) -> Iterator[Setting]:
    yield from _walk("recipe", file.recipe, file.recipe.model_dump(mode="json"))
    yield from _walk("workload", file.workload, file.workload.model_dump(mode="json"))


def _walk(path: str, config: Config, dumped: Mapping[str, Any]) -> Iterator[Setting]:
    for name, info in type(config).model_fields.items():
        value, own = getattr(config, name), f"{path}.{name}"
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        is_default = not info.is_required() and value == default
        if not isinstance(value, Config):
            yield Setting(own, dumped.get(name, value), is_default)
            continue
        # Fields that a dump leaves out are as by default.
        inside = dumped.get(name, {"off": {}} if component_of(info) else {})
        if inside.keys() <= type(value).model_fields.keys():
            yield from _walk(own, value, inside)
            continue
        entry = inside.get("name") or next(iter(inside))
        yield Setting(own, entry, is_default, is_entry=True)
        fields = inside if "name" in inside else inside[entry]
        yield from _walk(f"{own}.{entry}", value, fields)


def _written(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
