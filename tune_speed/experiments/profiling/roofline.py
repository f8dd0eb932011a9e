"""The roofline: how quick a step could be at best, by arithmetic and by memory.

With F operations and B bytes of a step (`work`), the device's rates R [FLOP/s] and W [byte/s]
(`rates`), and H bytes from the host at V [byte/s]:

    t_compute = F / R      t_memory = B / W      t_host = H / V      t ≥ max(t_compute, t_memory)

The arithmetic intensity is I = F / B [FLOP/byte]; the roof over it, min(R, I · W), is reached by
a step that takes exactly max(t_compute, t_memory). Where I < R / W, memory binds. Copies from the
host can be hidden behind computing, so t_host is a bound by itself.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009. We differ in measuring both rates.
"""

from typing import Literal, NamedTuple

Binding = Literal["compute", "memory"]


class Roofline(NamedTuple):
    """Bounds of a step's time [s], and where it lies under the roof."""

    compute_s: float
    memory_s: float
    host_s: float | None
    """None where nothing is copied from a host."""
    binding: Binding
    intensity: float
    """F / B [FLOP/byte]."""
    achieved_flop_per_s: float
    """F over the time that the step takes as it runs."""
    roof_flop_per_s: float
    """min(R, I · W)."""

    @property
    def least_s(self) -> float:
        """The larger of the bounds that computing sets [s]."""
        return max(self.compute_s, self.memory_s)


def roofline(
    *,
    flop: float,
    moved_bytes: float,
    host_bytes: float,
    flop_per_s: float,
    memory_bytes_per_s: float,
    host_bytes_per_s: float | None,
    step_s: float,
) -> Roofline:
    """Returns the bounds of a step; formulas and symbols are in this module's docstring.

    Args:
        flop: F, of a step.
        moved_bytes: B, within the device.
        host_bytes: H, from the host.
        flop_per_s: R, in the recipe's precision.
        memory_bytes_per_s: W.
        host_bytes_per_s: V; None where the device is the host.
        step_s: what a step takes as it runs.
    """
    compute_s, memory_s = flop / flop_per_s, moved_bytes / memory_bytes_per_s
    intensity = flop / moved_bytes
    return Roofline(
        compute_s=compute_s,
        memory_s=memory_s,
        host_s=host_bytes / host_bytes_per_s if host_bytes_per_s else None,
        binding="compute" if compute_s >= memory_s else "memory",
        intensity=intensity,
        achieved_flop_per_s=flop / step_s,
        roof_flop_per_s=min(flop_per_s, intensity * memory_bytes_per_s),
    )
