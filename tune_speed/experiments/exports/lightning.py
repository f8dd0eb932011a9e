"""A recipe as one Python file around Lightning's `Trainer`."""

from collections.abc import Iterator
from dataclasses import replace

from tune_speed.core.errors import Problem
from tune_speed.experiments.exports.carried import refuse_what_is_lost
from tune_speed.experiments.exports.filling import rendered
from tune_speed.experiments.exports.script import SCRIPT, context, unsettled
from tune_speed.study.file import RecipeFile

LIGHTNING = replace(
    SCRIPT,
    name="a Lightning script",
    only={
        **SCRIPT.only,
        "recipe.speedups.averaging": ("off",),
        "recipe.init_loss_scale": (None, 65536.0),
        "recipe.loss_scale_growth_steps": (2000,),
        "workload.mode": ("fixed_length",),
        "workload.target.metric": ("accuracy", "micro_f1", "loss"),
        "workload.eval_every_samples": (None,),
    },
)


def lightning_script(file: RecipeFile, *, origin: str, path: str) -> str:
    """Raises: ConfigError that names every field that a Lightning script cannot carry."""
    refuse_what_is_lost(LIGHTNING, file, more=_lost(file))
    facts = context(file, LIGHTNING, origin=origin, path=path)
    needs = [*facts["needs"], "lightning"]
    own = {"is_lightning": True, "needs": needs}
    return rendered("lightning.py.j2", {**facts, **own})


def _lost(file: RecipeFile) -> Iterator[Problem]:
    yield from unsettled(file, LIGHTNING)
    if file.recipe.clip_norm is not None and file.recipe.clip_value is not None:
        must = f"must be null with clip_norm in {LIGHTNING.name}, whose Trainer clips in one way"
        yield Problem(path="recipe.clip_value", must=must, given=f"{file.recipe.clip_value:g}")
