"""The machine that a trial runs on, and the process itself: devices, clocks, turnstile, files."""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "atomic_file": ("write_atomically",),
    "clock": ("Clock",),
    "cotenants": ("Tenancy",),
    "device": ("describe_device", "resolve_device"),
    "hardware": ("SystemFacts", "describe_system"),
    "sharing": ("Sharing",),
    "turnstile": ("Turnstile",),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
