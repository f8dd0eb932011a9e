"""Filters over trials: `optimizer=sgd and batch_size>=512`.

```
filter     = all ("or" all)*
all        = one ("and" one)*
one        = "not" one | "(" filter ")" | comparison
comparison = field ("=" | "!=" | "<" | "<=" | ">" | ">=" | "~") value
           | field ["not"] "in" "(" value ("," value)* ")"
           | field "is" ["not"] "none"
```

A field is one of `tracking.columns.COLUMNS`, a setting of the recipe by its whole name
(`optimizer.sgd.lr`) or by its last part where that is unique (`lr`), or a choice (`optimizer`). A
value is a number, `true`, `false`, or a text: a word, or anything in quotes, in which a doubled
quote stands for itself. Words such as `and` may be in capitals.

- A comparison with a field that the trial lacks is false, `!=` and `not in` too, as in SQL. `not`
  in front of a comparison is true wherever that is false.
- Texts compare letter by letter, so that moments in ISO 8601 compare as such; `~` finds a part of a
  text, whether in capitals or not.
- Values of different kinds (5 and `five`, 1 and true) are never equal, and neither comes before the
  other. A result field has one kind, and a value of another is refused.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import TrialRecord
from tune_speed.tracking.columns import COLUMNS
from tune_speed.tracking.filter import syntax
from tune_speed.tracking.filter.fields import FieldReader
from tune_speed.tracking.filter.syntax import Comparison, Condition, Joined, Negation

MAX_PUSHED = 16
"""Conditions that MLflow is given: each is a join, of which SQLite takes 64."""

# What reaches a tag as it is, and MLflow's filter too.
_PLAIN_TEXT = re.compile(r"[\w()](?:[\w .,:()+-]{0,198}[\w()])?", re.ASCII)


class Pushed(NamedTuple):
    """A condition on a tag of a run; none holds where the run lacks it."""

    tag: str
    sign: str
    """`=` or `!=`."""
    value: str


@dataclass(frozen=True)
class Where:
    """A filter; `parse_where` makes one."""

    text: str
    root: Condition

    def matches(self, record: TrialRecord) -> bool:
        """Whether a record fits.

        Raises: ConfigError if a field is the last part of several settings of its recipe.
        """
        return self.root.holds(FieldReader(record))

    def pushed(self) -> tuple[Pushed, ...]:
        """Returns conditions that all hold for every run whose record fits; a store checks them.

        They are coarser than the filter where a store knows no such thing (`or`, `not`, a last
        part), or where it may hold another text than the record (secrets are hidden).
        """
        root = self.root
        parts = root.parts if isinstance(root, Joined) and root.word == "and" else (root,)
        conditions = [c for part in parts if isinstance(part, Comparison) for c in _pushed(part)]
        return tuple(dict.fromkeys(conditions))[:MAX_PUSHED]

    def check(self, records: Iterable[TrialRecord]) -> None:
        """Refuses a field that none of `records` has; without records, refuses nothing.

        A trial may lack a field, but what all lack is a mistake in writing.

        Raises: ConfigError that names it, and the nearest one that there is.
        """
        missing, known = dict.fromkeys(_fields_of(self.root)), set[str]()
        for record in records:
            asked = FieldReader(record)
            missing = {name: None for name in missing if not asked.knows(name)}
            if not missing:
                return
            known |= asked.names()
        if known and missing:
            name = next(iter(missing))
            all_fields = ". `tune-speed list fields` lists them."
            raise ConfigError(
                f"{self.text!r}: `{name}` must be a field of a result or a recipe, but none of the"
                f" trials has it{did_you_mean(name, sorted(known)) or all_fields}"
            )


def parse_where(text: str) -> Where:
    """Returns the filter that `text` says.

    Raises: ConfigError, with the place, if it says none.
    """
    return Where(text, syntax.Parser(text).parse())


def in_mlflow(pushed: Iterable[Pushed]) -> str:
    """Returns an MLflow filter that holds where all of `pushed` do, "" for none."""
    # Names and values have no quotes in them: `_pushed` lets through none that has.
    return " AND ".join(f"tags.`{p.tag}` {p.sign} {p.value!r}" for p in pushed)


def _fields_of(condition: Condition) -> list[str]:
    if isinstance(condition, Comparison):
        return [condition.field]
    parts = (condition.part,) if isinstance(condition, Negation) else condition.parts
    return [field for part in parts for field in _fields_of(part)]


def _pushed(comparison: Comparison) -> Sequence[Pushed]:
    """Returns conditions that hold wherever `comparison` does."""
    column, literals = COLUMNS.get(comparison.field), comparison.literals
    tag, sign = column.tag if column else None, comparison.sign
    sign = {"in": "=", "not in": "!="}.get(sign, sign)
    is_plain = all(_PLAIN_TEXT.fullmatch(literal.raw) for literal in literals)
    is_one = len(literals) == 1 or sign == "!="
    if tag is None or sign not in ("=", "!=") or not is_plain or not is_one:
        return ()
    return [Pushed(tag, sign, literal.raw) for literal in literals]
