"""The machine that a trial runs on, and the process itself.

Devices and hardware facts, the clocks of a run, the turnstile between trials that share a device,
locks and files that are written as a whole.
"""

from typing import TYPE_CHECKING

from tune_speed.core.lazy import lazy_names

if TYPE_CHECKING:
    from tune_speed.runtime.atomic_file import write_atomically
    from tune_speed.runtime.clock import Clock
    from tune_speed.runtime.cotenants import Tenancy
    from tune_speed.runtime.device import describe_device, resolve_device
    from tune_speed.runtime.hardware import SystemFacts, describe_system
    from tune_speed.runtime.sharing import Sharing
    from tune_speed.runtime.turnstile import Turnstile

__all__ = [
    "Clock",
    "Sharing",
    "SystemFacts",
    "Tenancy",
    "Turnstile",
    "describe_device",
    "describe_system",
    "resolve_device",
    "write_atomically",
]

__getattr__ = lazy_names(
    __name__,
    {
        "atomic_file": ("write_atomically",),
        "clock": ("Clock",),
        "cotenants": ("Tenancy",),
        "device": (
            "describe_device",
            "resolve_device",
        ),
        "hardware": (
            "SystemFacts",
            "describe_system",
        ),
        "sharing": ("Sharing",),
        "turnstile": ("Turnstile",),
    },
)
