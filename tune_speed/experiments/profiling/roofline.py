"""The roofline: how quick a step could be at best, by arithmetic and by memory.

With F operations and B bytes of a step (`work`), the device's rates R [FLOP/s] and W [byte/s]
(`rates`), and H bytes from the host at V [byte/s]:

    t_compute = F / R      t_memory = B / W      t_host = H / V      t ≥ max(t_compute, t_memory)

The arithmetic intensity is I = F / B [FLOP/byte]; the roof over it, min(R, I · W), is reached by
a step that takes exactly max(t_compute, t_memory). Where I < R / W, memory binds.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009. We differ in measuring both rates.
"""

from tune_speed.experiments.profiling.result import Bounds


def roofline(
    *,
    flop: float,
    moved_bytes: float,
    host_bytes: float,
    flop_per_s: float,
    memory_bytes_per_s: float,
    host_bytes_per_s: float | None,
    step_s: float,
) -> Bounds:
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
    # Copies from the host can be hidden behind computing, so theirs is a bound by itself.
    return Bounds(
        compute_bound_ms=1e3 * compute_s,
        memory_bound_ms=1e3 * memory_s,
        host_bound_ms=1e3 * host_bytes / host_bytes_per_s if host_bytes_per_s else None,
        binding="compute" if compute_s >= memory_s else "memory",
        intensity_flop_per_byte=flop / moved_bytes,
        achieved_tflop_per_s=flop / step_s / 1e12,
        peak_frac=flop / step_s / flop_per_s,
        roof_frac=max(compute_s, memory_s) / step_s,
    )
