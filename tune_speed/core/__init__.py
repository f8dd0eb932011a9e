"""What every room rests on, without torch: errors, configurations, records, statistics, logs."""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "comparability": ("ComparisonKey", "Totals"),
    "config": ("Config",),
    "errors": (
        "ConfigError",
        "DataError",
        "Problem",
        "ServiceError",
        "StorageError",
        "TuneSpeedError",
    ),
    "event_log": ("EventLog", "SessionLog"),
    "records": ("Evaluation", "RunResult", "Status", "TrialRecord"),
    "stats": ("RunStatistics",),
    "targets": ("Target",),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
