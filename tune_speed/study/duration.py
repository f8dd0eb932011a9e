"""Durations as people write them: `90s`, `30m`, `1h30m`, or a bare number of seconds."""

import math
import re

_PART = r"(?:([0-9]+(?:\.[0-9]+)?){})?"
_DURATION = re.compile("".join(_PART.format(unit) for unit in "dhms"))
_UNIT_S = (86_400, 3_600, 60, 1)


def parse_duration_s(duration: str | float) -> float:
    """Returns the seconds of a duration. Raises: ValueError unless it is finite and above 0."""
    duration_s = _text_s(duration) if isinstance(duration, str) else float(duration)
    if duration_s is None or not 0 < duration_s < math.inf:
        raise ValueError("must be a duration above 0, such as `90s`, `30m`, `1h30m` or seconds")
    return duration_s


def _text_s(text: str) -> float | None:
    parts = _DURATION.fullmatch(text.replace(" ", ""))
    if parts is None:
        return None
    numbers = (float(number or 0) for number in parts.groups())
    return sum(number * unit_s for number, unit_s in zip(numbers, _UNIT_S, strict=True))
