"""Where the time of an optimizer step goes, against what the device could do; and what to change.

A recipe's own pipeline runs with borders between the phases of a step (`phases`), the
device's rates are measured (`rates`), what a step computes and moves is counted (`work`), and the
roofline model compares them (`profile`). `advice` says what to try; `output` shows it.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "result": ("ProfileResult",),
    "output": ("plot_profile",),
    "profile": ("profile_recipe",),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
