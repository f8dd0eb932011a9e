"""Figures, moments and names in the words of a page."""

import re
from collections import Counter
from collections.abc import Iterable

from tune_speed.core.text import moment_of


def seconds(value_s: float | None) -> str:
    """Returns `0.812 s`, `84.3 s`, `1,234 s` or `5.2 h`; a dash for None."""
    if value_s is None:
        return "–"
    if value_s >= 7200:
        return f"{value_s / 3600:,.1f} h"
    return f"{number(value_s)} s"


def number(value: float | None) -> str:
    """Returns three digits, or all those before the point; a dash for None."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    # `#` keeps zeros at the end: 1.20 and 1.21 stand beside one another.
    return f"{value:#.3g}".rstrip(".") if value else "0"


def setting(value: object) -> str:
    """Returns a searched value: four digits of a float, anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def moment(text: str) -> str:
    """Returns `2026-11-21 17:23:32 UTC` from ISO 8601; what is no such moment stays as it is."""
    parsed = moment_of(text)
    return text or "–" if parsed is None else parsed.strftime("%Y-%m-%d %H:%M:%S UTC")


def plural(count: int, word: str) -> str:
    """Returns `1 trial` or `2 trials`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def file_stem(text: str) -> str:
    """Returns `text` as a file can be named without quotes in a shell."""
    return re.sub(r"[^\w.-]", "_", text) or "_"


def web_address(url: str | None) -> str | None:
    """Returns `url` if a page may link to it; anything but http and https runs or reads locally."""
    return url if url is not None and re.match(r"https?://", url) else None


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Returns for each dotted name its shortest ending that no other name has."""
    every = list(dict.fromkeys(names))
    counts = Counter(ending for name in every for ending in _endings(name))
    return {name: next((end for end in _endings(name) if counts[end] == 1), name) for name in every}


def _endings(name: str) -> list[str]:
    """Returns `lr`, `sgd.lr`, `optimizer.sgd.lr` of the latter."""
    parts = name.split(".")
    return [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
