"""The region that a search tried, as columns of numbers: for regressions on what was chosen.

A parameter depends on another where its path goes through a value of it: `optimizer.sgd.lr` plays a
part where `optimizer` is `sgd`. Where it plays none, it is absent.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
# Values of one parameter as numbers, (N,): a category's place among the categories, a number's
# place between the least (0) and the greatest (1) that was tried, `ABSENT` where it plays no part.
Codes = NDArray[np.float64]

ABSENT = -1.0
# Positive numbers of which the greatest is so many times the least, and of which half lie in the
# lower quarter of the range, are logarithmic: records say what was tried, not from which scale.
LOG_SPAN = 10.0
# Numbers of so many different values at most, each tried twice or more on average, are levels: a
# choice of batch sizes, not a range.
MAX_LEVELS = 8
# Equal parts of a range, within which a parameter counts as held.
NUM_PARTS = 16


class Parent(NamedTuple):
    """What must be chosen for a parameter to play a part."""

    name: str
    code: float


@dataclass(frozen=True, kw_only=True)
class Column:
    """One parameter of the region."""

    name: str
    categories: tuple[str, ...] = ()
    """Its values as text, where they are not all numbers."""
    low: float = 0.0
    high: float = 1.0
    """Least and greatest number, or their logarithms."""
    is_log: bool = False
    levels: Codes | None = None
    """Codes of all its values, where they are few; None for a range."""
    parent: Parent | None = None

    def code(self, value: Any) -> float:
        """Returns the code of a value that was tried."""
        if self.categories:
            return float(self.categories.index(str(value)))
        size = math.log(value) if self.is_log else float(value)
        return (size - self.low) / (self.high - self.low)

    def draw(self, rng: np.random.Generator, size: int) -> Codes:
        """Returns codes (size,) of values drawn evenly: of the levels, or of the range."""
        return rng.random(size) if self.levels is None else rng.choice(self.levels, size)

    def groups(self, codes: Codes) -> NDArray[np.intp]:
        """Returns for codes (N,) the group that each is in, (N,): its level or part of the range.

        Codes must not be absent.
        """
        if self.levels is None:
            # The greatest value, 1, belongs to the last part.
            return np.minimum((codes * NUM_PARTS).astype(np.intp), NUM_PARTS - 1)
        return np.asarray(np.searchsorted(self.levels, codes))

    def spread(self, codes: Codes) -> Matrix:
        """Returns the codes (N,) as a tree can split them: (N, 1), or (N, categories) of 0 and 1.

        An absent number lies below the range; an absent category is none of them.
        """
        # ABSENT is -1: one split of a tree tells it from the range, [0, 1].
        places = np.arange(len(self.categories))
        numbers = codes[:, None] == places if self.categories else codes[:, None]
        # The type of scikit-learn's trees, which convert nothing where their checks are off.
        return np.asarray(numbers, dtype=np.float32)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Returns a column for each parameter of which two values or more were tried."""
    names = dict.fromkeys(name for row in rows for name in row)
    found = (_column(name, [row[name] for row in rows if name in row]) for name in names)
    columns = {column.name: column for column in found if column is not None}
    return tuple(_with_parent(column, columns) for column in columns.values())


def codes_of(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> dict[str, Codes]:
    """Returns the codes (N,) of what the rows chose, by name."""
    return {
        c.name: np.array([c.code(row[c.name]) if c.name in row else ABSENT for row in rows])
        for c in columns
    }


def draw(columns: Sequence[Column], *, size: int, rng: np.random.Generator) -> dict[str, Codes]:
    """Returns codes (size,) of configurations drawn evenly from the region, by name.

    Parameters are drawn independently; then those go whose parent was drawn otherwise.
    """
    codes = {column.name: column.draw(rng, size) for column in columns}
    # A parent's path is shorter than its child's, so that absence is passed on.
    for column in sorted(columns, key=lambda column: column.name.count(".")):
        if column.parent is not None:
            plays = codes[column.parent.name] == column.parent.code
            codes[column.name] = np.where(plays, codes[column.name], ABSENT)
    return codes


def matrix_of(columns: Sequence[Column], codes: Mapping[str, Codes]) -> Matrix:
    """Returns the codes of all columns, (N,) each, side by side as a tree can split them."""
    return np.hstack([column.spread(codes[column.name]) for column in columns])


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


def _with_parent(column: Column, columns: Mapping[str, Column]) -> Column:
    """Returns the column with the nearest parameter on whose value it depends, if there is one."""
    parts = column.name.split(".")
    for count in range(len(parts) - 2, 0, -1):
        above = columns.get(".".join(parts[:count]))
        if above is not None and parts[count] in above.categories:
            return replace(column, parent=Parent(above.name, above.code(parts[count])))
    return column
