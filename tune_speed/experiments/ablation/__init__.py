"""What single changes of a recipe, and several together, do to its time and its scores.

Axes say what is changed, a design says which of the changes are run together, and contrasts of
runs that share a seed say what each of them did. Nothing here trains, and nothing needs torch.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "design": (
        *("BASE", "Arm", "Axis", "Design", "Level"),
        *("arms_of", "parse_axes", "read_axes", "settings_of", "turns"),
    ),
    "effects": ("Contrast", "Estimate", "contrasts_of", "estimate", "with_holm"),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
