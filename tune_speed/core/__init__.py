"""What every room rests on: errors, configurations, records, targets, statistics, event logs.

It imports no other room and no torch.
"""

from typing import TYPE_CHECKING

from tune_speed.core.lazy import lazy_names

if TYPE_CHECKING:
    from tune_speed.core.comparability import ComparisonKey, Totals
    from tune_speed.core.config import Config
    from tune_speed.core.errors import (
        ConfigError,
        DataError,
        Problem,
        ServiceError,
        StorageError,
        TuneSpeedError,
    )
    from tune_speed.core.event_log import EventLog, SessionLog
    from tune_speed.core.records import Evaluation, RunResult, Status, TrialRecord
    from tune_speed.core.stats import RunStatistics
    from tune_speed.core.targets import Target

__all__ = [
    "ComparisonKey",
    "Config",
    "ConfigError",
    "DataError",
    "Evaluation",
    "EventLog",
    "Problem",
    "RunResult",
    "RunStatistics",
    "ServiceError",
    "SessionLog",
    "Status",
    "StorageError",
    "Target",
    "Totals",
    "TrialRecord",
    "TuneSpeedError",
]

__getattr__ = lazy_names(
    __name__,
    {
        "comparability": (
            "ComparisonKey",
            "Totals",
        ),
        "config": ("Config",),
        "errors": (
            "ConfigError",
            "DataError",
            "Problem",
            "ServiceError",
            "StorageError",
            "TuneSpeedError",
        ),
        "event_log": (
            "EventLog",
            "SessionLog",
        ),
        "records": (
            "Evaluation",
            "RunResult",
            "Status",
            "TrialRecord",
        ),
        "stats": ("RunStatistics",),
        "targets": ("Target",),
    },
)
