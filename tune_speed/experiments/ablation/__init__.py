"""What single changes of a recipe, and several together, do to its time and its scores.

Axes say what is changed, a design says which of the changes are run together, and contrasts of
runs that share a seed say what each of them did. Nothing here trains, and nothing needs torch.
"""

from tune_speed.experiments.ablation.axes import Axis, Level, parse_axes, read_axes
from tune_speed.experiments.ablation.design import BASE, Arm, Design, arms_of, settings_of, turns
from tune_speed.experiments.ablation.effects import (
    Contrast,
    Estimate,
    contrasts_of,
    estimate,
    with_holm,
)

__all__ = [
    "BASE",
    "Arm",
    "Axis",
    "Contrast",
    "Design",
    "Estimate",
    "Level",
    "arms_of",
    "contrasts_of",
    "estimate",
    "parse_axes",
    "read_axes",
    "settings_of",
    "turns",
    "with_holm",
]
