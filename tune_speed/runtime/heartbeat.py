"""Signs of life of what this process trains, for whoever watches that it does not hang.

A sign is a step, a batch of an evaluation, and the begin and end of each phase of a run (data,
network, warm-up with compilation, measuring, evaluating). Counting one costs some 50 ns.
"""

_beats = 0


def beat() -> None:
    """Counts a sign of life."""
    global _beats
    # Two threads at once may lose one: only whether it moves matters.
    _beats += 1


def beats() -> int:
    """Returns how many there have been."""
    return _beats
