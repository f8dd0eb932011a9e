"""What a device counts: its energy, and the share of time in which it works.

NVML counts the energy of a whole GPU, RAPL (`energy_uj` of each `intel-rapl:N` below
/sys/class/powercap) that of all packages of the node. Nothing is estimated: a part of a GPU, and a
CPU whose counters are missing or not readable (most systems let root alone read them), have none.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from tune_speed.runtime.clock import mean_power_w
from tune_speed.runtime.hardware import ask_nvml, read_text
from tune_speed.runtime.sharing import Sharing
from tune_speed.runtime.step_timer import MEASURE_WITHIN_S

POWERCAP = Path("/sys/class/powercap")
IDLE_S = 0.5
"""The baseline is measured for so long [s]."""
MOST_W = 500.0
"""A package that took so much [W] may have passed its counter's end unseen between two readings."""

Meter = Callable[[], float | None]
"""Returns the energy up to now from any moment on [J]; None: not known, nor what was before."""


def energy_meter(device: torch.device) -> Meter:
    def read() -> float | None:
        total_mj = ask_nvml(device, "nvmlDeviceGetTotalEnergyConsumption")
        return None if total_mj is None else float(total_mj) / 1000

    return read if device.type == "cuda" else PackageMeter(POWERCAP).read


class PackageMeter:
    """Adds up what all packages of the node's CPUs count, over the ends of their counters."""

    def __init__(self, powercap: Path, *, now: Callable[[], float] = time.monotonic) -> None:
        """Finds the counters; parts of a package, which it contains, and `psys` are none."""
        found = sorted(powercap.glob("intel-rapl:*"))
        self._zones = [
            zone for zone in found if (read_text(zone / "name") or "").startswith("package-")
        ]
        self._now, self._read_at_s, self._total_uj = now, now(), 0
        self._counts = self._count()

    def read(self) -> float | None:
        """Returns the energy so far [J]; None where a counter cannot be read."""
        passed_s, self._read_at_s = self._now() - self._read_at_s, self._now()
        before, self._counts = self._counts, self._count()
        if not before or not self._counts:
            return None
        for (count_uj, range_uj), (earlier_uj, _) in zip(self._counts, before, strict=True):
            self._total_uj += (count_uj - earlier_uj) % range_uj
        shortest_uj = min(range_uj for _, range_uj in self._counts)
        return self._total_uj / 1e6 if passed_s * MOST_W * 1e6 < shortest_uj else None

    def _count(self) -> list[tuple[int, int]]:
        """Returns each counter, and where it begins again [µJ]; none where one is not readable."""
        names = ("energy_uj", "max_energy_range_uj")
        read = [[read_text(zone / name) or "" for name in names] for zone in self._zones]
        if not all(text.isdecimal() for texts in read for text in texts):
            return []
        return [(int(count), int(end)) for count, end in read]


def idle_power_w(meter: Meter, sharing: Sharing) -> float | None:
    """Returns the device's power while its tenants pause [W]; None where they could not."""
    if meter() is None:
        return None
    with sharing.turnstile.measuring(patience_s=MEASURE_WITHIN_S) as turn:
        if turn is None:
            return None
        began_j, began_s = meter(), time.perf_counter()
        time.sleep(IDLE_S)
        power_w = mean_power_w(began_j, meter(), time.perf_counter() - began_s)
    return power_w if turn.is_isolated else None


def gpu_utilisation(device: torch.device) -> float | None:
    """Returns the share of the last second or less in which some kernel ran on the GPU, in [0, 1].

    What nvidia-smi shows; it says nothing on how many of the GPU's cores that kernel used. Does not
    wait for the device. None on a CPU, without an NVIDIA driver, and on a part of a GPU, which does
    not count it: then the fed ratio replaces it.
    """
    rates = ask_nvml(device, "nvmlDeviceGetUtilizationRates")
    return None if rates is None else float(rates.gpu) / 100
