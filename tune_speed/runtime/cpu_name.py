"""The name of a machine's CPU, without torch: the driver of a search needs it too."""

import platform
import re
from functools import cache
from pathlib import Path

from tune_speed.core.words import Device

CPU_INFO = Path("/proc/cpuinfo")


def cpu_device_name(*, threads: int) -> str:
    return str(Device(type=cpu_name(), threads=threads))


@cache
def cpu_name() -> str:
    text = CPU_INFO.read_text(errors="replace") if CPU_INFO.exists() else ""
    return cpu_model(text) or platform.processor() or platform.machine()


def cpu_model(cpuinfo: str) -> str | None:
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else None
