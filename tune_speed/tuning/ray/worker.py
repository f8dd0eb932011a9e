"""Set-up of a process in which Ray runs trials: of a search, of ranks, or alone on a device.

Without torch until a trial begins, so that the driver, which names these classes, does without.
"""

from tune_speed.components.plugins.registry import receive
from tune_speed.runtime import process


def set_up_worker(plugins: str = "") -> None:
    """Sets up this process: a patient collector, an end with its parent, `shipped`'s plugins."""
    process.make_patient()
    # Ray ends its workers when the raylet is gone, but a frozen one would not notice.
    process.end_with_parent()
    receive(plugins)
