"""The name of a machine's CPU, without torch: the driver of a search asks for it too."""

import platform
import re
from functools import cache
from pathlib import Path


def cpu_device_name(*, threads: int) -> str:
    """Returns the name that records carry: `cpu (2 threads, AMD EPYC)`."""
    return f"cpu ({threads} threads, {_cpu_model()})"


@cache
def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()
