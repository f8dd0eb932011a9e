"""One mistake in a tree, before it is known which file and line the tree came from."""

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import Problem
from tune_speed.core.renamed import LEFT, LEFT_MUST
from tune_speed.study.yaml import Source, TreePath, dotted


class Mistake(NamedTuple):
    """What must hold at `path`, and does not."""

    path: TreePath
    """Keys and positions in the tree as it was written, `choices` included."""
    must: str
    given: str | None = None
    hint: str | None = None
    is_data: bool = False
    """Whether the study is right, and its data are missing or cannot be read."""
    is_unknown: bool = False
    """Whether it names an entry that a table of components lacks; a plugin may bring it."""

    def problem(self, source: Source | None = None) -> Problem:
        place = source.place(self.path) if source else None
        # `choices` is only in the tree as it was written; parameters are named without it.
        names = tuple(n for n in self.path if n != "choices" and isinstance(n, str))
        return Problem(
            path=dotted(names),
            must=self.must,
            given=self.given,
            hint=self.hint,
            file=place.file if place else None,
            line=place.line if place else None,
            is_data=self.is_data,
        )


def left_mistakes(source: Source) -> Iterator[Mistake]:
    for left in LEFT:
        path = tuple(left.path.split("."))
        found = functools.reduce(
            lambda node, name: node.get(name) if isinstance(node, Mapping) else None,
            path,
            source.tree,
        )
        if found is not None and left.value in (None, found):
            yield Mistake(path, LEFT_MUST, shown(found), left.instead)


def shown(value: Any, *, width: int = 80) -> str:
    """Returns `value` as a user would have written it, cut to `width` characters."""
    # As JSON, since `true` and `null` are what was written, not Python's `True` and `None`.
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= width else text[: width - 1] + "…"


def near_miss(name: Any, known: Iterable[str]) -> str | None:
    text = did_you_mean(str(name), known).removeprefix("; ")
    return text[:1].upper() + text[1:] or None
