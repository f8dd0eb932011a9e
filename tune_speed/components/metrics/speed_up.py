"""How much faster a variant is, and whether techniques together are worth more than one by one."""

from tune_speed.components.metrics.base import Metric


def speed_up(base_s: float, variant_s: float) -> float:
    """Returns S = T_base / T_variant: above 1 the variant is faster.

    With the base in fp32 and the variant in mixed precision it is S0's S_mixed.
    """
    assert base_s > 0 and variant_s > 0, (base_s, variant_s)
    return base_s / variant_s


SPEED_UPS = {
    "speed_up": Metric(
        about="Time of the base over that of the variant; S_mixed where the variant is mixed"
        " precision: `speed_up`.",
        unit="1",
        source="S0, equation 1",
    ),
    "expected_speed_up": Metric(
        about="Product of the parts' speed-ups, expected of all together: `tune-speed replicate`.",
        unit="1",
        source="S3, Results",
    ),
    "synergy": Metric(
        about="Log of the speed-up of all together less the sum of the parts' logs:"
        " `tune-speed replicate`.",
        unit="1",
        source="S2, Next Checks 2; additive on the log scale",
    ),
}
