"""Interpolation between two values, which schedules are made of."""

import math


def cosine(start: float, end: float, x: float) -> float:
    """Returns end + (start - end) (1 + cos(pi x)) / 2."""
    return end + (start - end) * (1 + math.cos(math.pi * x)) / 2


def linear(start: float, end: float, x: float) -> float:
    """Returns start + (end - start) x."""
    return start + (end - start) * x
