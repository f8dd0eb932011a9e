"""The speed-up over another recipe."""


def speed_up(base_s: float, variant_s: float) -> float:
    """Returns S = T_base / T_variant: above 1 the variant is faster.

    With the base in fp32 and the variant in mixed precision it is S0's S_mixed.
    """
    assert base_s > 0 and variant_s > 0, (base_s, variant_s)
    return base_s / variant_s
