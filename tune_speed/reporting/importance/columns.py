"""Searched parameters as columns of numbers, which figures draw and forests split."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Positive numbers of which the greatest is so many times the least, and of which half lie in the
# lower quarter of the range, are logarithmic: records say what was tried, not from which scale.
LOG_SPAN = 10.0
# Numbers of so many different values at most, each tried twice or more on average, are levels: a
# choice of batch sizes, not a range.
MAX_LEVELS = 8


@dataclass(frozen=True, kw_only=True)
class Column:
    """One parameter of which two values or more were tried."""

    name: str
    categories: tuple[str, ...] = ()
    """Its values as text, where they are not all numbers."""
    low: float = 0.0
    high: float = 1.0
    """Least and greatest number, or their logarithms."""
    is_log: bool = False
    levels: Floats | None = None
    """Codes of all its values, where they are few; None for a range."""

    def code(self, value: Any) -> float:
        """Returns a category's place among the categories, or a number's in the range, 0 to 1."""
        if self.categories:
            return float(self.categories.index(str(value)))
        size = math.log(value) if self.is_log else float(value)
        return (size - self.low) / (self.high - self.low)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    names = dict.fromkeys(name for row in rows for name in row)
    found = (_column(name, [row[name] for row in rows if name in row]) for name in names)
    return tuple(column for column in found if column is not None)


def matrix_of(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Floats:
    """Returns the codes of what the N rows chose, (N, columns).

    Where a parameter plays no part it has the median of the others, which says nothing: else the
    effect of `optimizer` would be shared with all that depends on it.
    """
    codes = [[c.code(r[c.name]) if c.name in r else math.nan for c in columns] for r in rows]
    known = np.array(codes)
    return np.where(np.isnan(known), np.nanmedian(known, axis=0), known)


def _column(name: str, values: Sequence[Any]) -> Column | None:
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        categories = tuple(sorted(set(map(str, values))))
        levels = np.arange(len(categories), dtype=np.float64)
        return Column(name=name, categories=categories, levels=levels) if levels[1:].size else None
    different = sorted(set(values))
    if len(different) == 1:
        return None
    least, greatest = different[0], different[-1]
    in_lower_quarter = statistics.median(values) < least + (greatest - least) / 4
    is_log = 0 < least * LOG_SPAN <= greatest and in_lower_quarter
    low, high = (math.log(v) if is_log else float(v) for v in (different[0], different[-1]))
    column = Column(name=name, low=low, high=high, is_log=is_log)
    if len(different) > min(MAX_LEVELS, len(values) // 2):
        return column
    levels = np.array([column.code(value) for value in different])
    return Column(name=name, low=low, high=high, is_log=is_log, levels=levels)
