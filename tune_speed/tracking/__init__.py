"""MLflow: what a study leaves there, and how it is read back.

`schema` says what a trial looks like in MLflow, `Tracker` writes a search from a thread of its own,
the readers query. MLflow is imported by nothing but this package, and only on first use.
"""

from typing import TYPE_CHECKING

from tune_speed.core.lazy import lazy_names

if TYPE_CHECKING:
    from tune_speed.tracking.reader.queries import (
        TrackedTrial,
        find_trial,
        find_trials,
        run_url,
        ui_command,
    )
    from tune_speed.tracking.reader.studies import StudySummary, list_studies
    from tune_speed.tracking.store.store import open_store
    from tune_speed.tracking.store.uri import strip_secrets, tracking_uri
    from tune_speed.tracking.writer.tracker import Tracker, Undelivered

__all__ = [
    "StudySummary",
    "TrackedTrial",
    "Tracker",
    "Undelivered",
    "find_trial",
    "find_trials",
    "list_studies",
    "open_store",
    "run_url",
    "strip_secrets",
    "tracking_uri",
    "ui_command",
]

__getattr__ = lazy_names(
    __name__,
    {
        "reader.queries": (
            "TrackedTrial",
            "find_trial",
            "find_trials",
            "run_url",
            "ui_command",
        ),
        "reader.studies": (
            "StudySummary",
            "list_studies",
        ),
        "store.store": ("open_store",),
        "store.uri": (
            "strip_secrets",
            "tracking_uri",
        ),
        "writer.tracker": (
            "Tracker",
            "Undelivered",
        ),
    },
)
