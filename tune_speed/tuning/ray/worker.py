"""Set-up of a process in which Ray runs trials: of a search, of ranks, or alone on a device.

Without torch until a trial begins, so that the driver, which names these classes, does without.
"""

from typing import TYPE_CHECKING

import psutil

from tune_speed.components.plugins.registry import receive
from tune_speed.runtime import process
from tune_speed.training.trial import Allotment

if TYPE_CHECKING:
    import torch


def set_up_worker(plugins: str = "") -> None:
    """Sets this process up: a patient garbage collector, an end with its parent, and plugins.

    Args:
        plugins: as `shipped` packs them.
    """
    process.make_patient()
    # Ray ends its workers when the raylet is gone, but a frozen one would not notice.
    process.end_with_parent()
    receive(plugins)


def limit_memory_to(allotment: Allotment, device: "torch.device") -> None:
    """Bounds the memory that a trial in this process may take, on its device and of the node."""
    from tune_speed.runtime.device import limit_memory

    memory_gib, node_bytes = allotment.memory_gib, float(psutil.virtual_memory().total)
    limit_memory(
        device,
        gpu_fraction=allotment.gpu_fraction,
        cpu_fraction=None if memory_gib is None else min(1.0, memory_gib * 2**30 / node_bytes),
    )
