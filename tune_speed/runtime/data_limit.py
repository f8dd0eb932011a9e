"""A bound on this process's own memory: Linux's RLIMIT_DATA, which counts writable private pages.

Beyond it an allocation fails, where otherwise the system would kill a process, maybe another one.
"""

import re
from pathlib import Path

HEADROOM_BYTES = 64 * 1024**2
SCARCE_SHARE = 0.8


class DataLimit:
    """The bound of one process; without effect where the system is not Linux."""

    def __init__(self) -> None:
        self._base_bytes: int | None = None

    def set(self, num_bytes: int) -> None:
        """Allows `num_bytes` beyond what the process had when it was first called."""
        if self._base_bytes is None:
            self._base_bytes = status_bytes("VmData")
        if self._base_bytes is not None:
            _set_soft_limit(self._base_bytes + num_bytes)

    def renew_headroom(self) -> None:
        """Leaves some room above what is in use, if the bound is ours.

        What malloc keeps counts as used. It can serve the next tensors, but not the code that
        oneDNN compiles, which needs pages of its own.
        """
        used = status_bytes("VmData")
        if self._base_bytes is not None and used is not None:
            _set_soft_limit(max(_soft_limit(), used + HEADROOM_BYTES))

    def is_near(self) -> bool:
        """Returns whether most of what is allowed is in use, ours or the shell's."""
        used = status_bytes("VmData")
        return used is not None and used > SCARCE_SHARE * _soft_limit()


def status_bytes(name: str) -> int | None:
    """Returns an entry of /proc/self/status [bytes], or None where there is none."""
    status = Path("/proc/self/status")
    text = status.read_text() if status.exists() else ""
    match = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _soft_limit() -> float:
    import resource  # Not on every system.

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def _set_soft_limit(num_bytes: float) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if num_bytes == float("inf"):
        return
    soft = int(num_bytes) if hard == resource.RLIM_INFINITY else min(int(num_bytes), hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
