"""MLflow: what a study leaves there, and how it is read back.

Nothing but this package imports MLflow, and only on first use.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "reader.queries": ("Query", "find_trial", "find_trials"),
    "reader.studies": ("list_studies",),
    "store.store": ("Store",),
    "writer.tracker": ("Tracker",),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
