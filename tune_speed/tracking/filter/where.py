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

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import TrialRecord
from tune_speed.tracking.columns import COLUMNS
from tune_speed.tracking.filter.fields import FieldReader

EXAMPLE = "optimizer=sgd and batch_size>=512"
MAX_DEPTH = 50
"""Of parentheses and `not` within one another."""

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
KEYWORDS = ("and", "or", "not", "in", "is", "none")

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")|(?P<sign>!=|<=|>=|==|[=<>~(),])"
    r"|(?P<word>[^\s()=!<>~,'\"]+)|(?P<end>\Z))"
)
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FIELD = re.compile(r"[^\W\d][\w.-]*")


Values = Callable[[str], Any]
"""Returns a trial's value of a field, None where it has none."""


class Literal(NamedTuple):
    """A value of a filter, as it was written and as it is compared."""

    raw: str
    value: str | int | float | bool


@dataclass(frozen=True)
class Comparison:
    """A field and what it is compared with: one value, or for `in` several."""

    field: str
    sign: str
    literals: tuple[Literal, ...]

    def holds(self, value_of: Values) -> bool:
        value = value_of(self.field)
        if self.sign in ("is none", "is not none"):
            return (value is None) == (self.sign == "is none")
        if value is None:
            return False
        wanted = [literal.value for literal in self.literals]
        if self.sign == "in":
            return any(_compare("=", value, each) for each in wanted)
        if self.sign == "not in":
            return all(_compare("!=", value, each) for each in wanted)
        return _compare(self.sign, value, wanted[0])


@dataclass(frozen=True)
class Negation:
    """True where `part` is false."""

    part: "Condition"

    def holds(self, value_of: Values) -> bool:
        return not self.part.holds(value_of)


@dataclass(frozen=True)
class Joined:
    """Conditions of which all must hold (`and`), or one (`or`); from left to right."""

    word: str
    parts: tuple["Condition", ...]

    def holds(self, value_of: Values) -> bool:
        each = (part.holds(value_of) for part in self.parts)
        return all(each) if self.word == "and" else any(each)


Condition = Comparison | Negation | Joined


class _Token(NamedTuple):
    kind: str
    """`text`, `sign`, `word` or `end`."""
    raw: str
    at: int
    """Place in the filter, counted from 0."""

    @property
    def word(self) -> str:
        """The word in small letters, or the sign; empty for texts in quotes."""
        return "" if self.kind == "text" else self.raw.lower()


class Parser:
    """Recursive descent over the grammar above."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._next = 0

    def parse(self) -> Condition:
        """Returns the tree. Raises: ConfigError, with the place, if the text is no filter."""
        condition = self._joined("or", depth=0)
        if self._peek.kind != "end":
            self._fail("`and`, `or` or the end")
        return condition

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while not tokens or tokens[-1].kind != "end":
            match = _TOKEN.match(self._text, at)
            if match is None:
                at = len(self._text) - len(self._text[at:].lstrip())
                is_quote = self._text[at] in "'\""
                must = "a closing quote too" if is_quote else "`!=`, `=` or a field"
                self._fail(must, _Token("sign", self._text[at], at))
            kind = str(match.lastgroup)
            raw = match[kind] if kind != "end" else ""
            tokens.append(_Token(kind, raw, match.start(kind)))
            at = match.end()
        return tokens

    def _joined(self, word: str, *, depth: int) -> Condition:
        parts = [self._part(word, depth)]
        while self._peek.word == word:
            self._take()
            parts.append(self._part(word, depth))
        return parts[0] if len(parts) == 1 else Joined(word, tuple(parts))

    def _part(self, word: str, depth: int) -> Condition:
        return self._joined("and", depth=depth) if word == "or" else self._one(depth=depth)

    def _one(self, *, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            self._fail(f"at most {MAX_DEPTH} parentheses and `not` within one another")
        if self._peek.word == "not":
            self._take()
            return Negation(self._one(depth=depth + 1))
        if self._peek.word != "(":
            return self._comparison()
        self._take()
        inside = self._joined("or", depth=depth + 1)
        self._expect(")", "`and`, `or` or `)`")
        return inside

    def _comparison(self) -> Comparison:
        token = self._take()
        is_word = token.kind == "word" and token.word not in KEYWORDS
        if not is_word or not _FIELD.fullmatch(token.raw):
            self._fail("a field, such as `batch_size`", token)
        field, sign = token.raw, self._take()
        if sign.word == "is":
            is_not = self._peek.word == "not"
            self._next += is_not
            self._expect("none", "`none`")
            return Comparison(field, "is not none" if is_not else "is none", ())
        if sign.word in ("in", "not"):
            if sign.word == "not":
                self._expect("in", "`in`")
            return Comparison(field, "not in" if sign.word == "not" else "in", self._list(field))
        name = "=" if sign.raw == "==" else sign.raw
        if sign.kind != "sign" or name not in (*COMPARE, "~"):
            self._fail(f"a comparison, one of {' '.join(COMPARE)} ~ in is", sign)
        return Comparison(field, name, (self._literal(field, name),))

    def _list(self, field: str) -> tuple[Literal, ...]:
        self._expect("(", "`(`")
        literals = [self._literal(field, "=")]
        while self._peek.word == ",":
            self._take()
            literals.append(self._literal(field, "="))
        self._expect(")", "`,` or `)`")
        return tuple(literals)

    def _literal(self, field: str, sign: str) -> Literal:
        token = self._take()
        if token.word == "none":
            self._fail(f"a value; whether there is one is `{field} is none`", token)
        if token.kind not in ("text", "word") or token.word in KEYWORDS:
            self._fail("a value: a number, a word, or a text in quotes", token)
        quote = token.raw[0] if token.kind == "text" else ""
        raw = token.raw[1:-1].replace(quote * 2, quote) if quote else token.raw
        value = raw if quote or sign == "~" else self._value(token)
        known = COLUMNS.get(field)
        if known is None or known.is_number:
            if known is not None and (sign == "~" or isinstance(value, str | bool)):
                self._fail(f"a number and = != < <= > >=, as `{field}` is a number", token)
            if isinstance(value, bool) and sign not in ("=", "!="):
                self._fail("a number or a text: true and false compare by = and != only", token)
            return Literal(raw, value)
        if known.among and sign in ("=", "!=") and raw not in known.among:
            near = did_you_mean(raw, known.among)
            self._fail(f"one of {', '.join(known.among)}", token, near=near)
        return Literal(raw, raw)

    def _value(self, token: _Token) -> str | int | float | bool:
        if token.word in ("true", "false"):
            return token.word == "true"
        if not _NUMBER.fullmatch(token.raw):
            return token.raw
        if re.fullmatch(r"[+-]?\d{1,300}", token.raw, re.ASCII):
            return int(token.raw)
        number = float(token.raw)
        if number in (float("inf"), float("-inf")):
            self._fail("a number below 1.8e308", token)
        return number

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._peek
        self._next += token.kind != "end"
        return token

    def _expect(self, word: str, expected: str) -> None:
        token = self._take()
        if token.word != word or token.kind == "end":
            self._fail(expected, token)

    def _fail(self, expected: str, token: _Token | None = None, *, near: str = "") -> NoReturn:
        token = token or self._peek
        start = max(0, token.at - 60)
        shown = re.sub(r"[\s\x00-\x1f\x7f]", " ", self._text[start : token.at + 40])
        given = f"`{token.raw[:60]}`" if token.raw else "the end"
        raise ConfigError(
            f"the filter must have {expected} at the mark, but got {given}{near or ':'}\n"
            f"  {shown}\n  {' ' * (token.at - start)}^\nWrite it like: {EXAMPLE}"
        )


def _compare(sign: str, value: Any, wanted: str | int | float | bool) -> bool:
    if sign == "~":
        return isinstance(value, str) and str(wanted).lower() in value.lower()
    if _kind(value) != _kind(wanted):
        return sign == "!="
    return COMPARE[sign](value, wanted)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else type(value).__name__


@dataclass(frozen=True)
class Where:
    """A filter; `parse_where` makes one."""

    text: str
    root: Condition

    def matches(self, record: TrialRecord) -> bool:
        """Raises: ConfigError if a field is the last part of several settings of its recipe."""
        return self.root.holds(FieldReader(record).value)

    @property
    def fields(self) -> list[str]:
        """The names of the fields that it asks for."""
        return list(dict.fromkeys(_fields_of(self.root)))

    def check(self, records: Iterable[TrialRecord]) -> None:
        """Refuses a field that none of `records` has; without records, refuses nothing.

        Raises: ConfigError that names it, and the nearest one that there is.
        """
        missing, known = dict.fromkeys(self.fields), set[str]()
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


def where_of(text: str | None) -> Where | None:
    return None if text is None else parse_where(text)


def parse_where(text: str) -> Where:
    """Returns the filter that `text` says. Raises: ConfigError, with the place, if it says none."""
    return Where(text, Parser(text).parse())


def _fields_of(condition: Condition) -> list[str]:
    if isinstance(condition, Comparison):
        return [condition.field]
    parts = (condition.part,) if isinstance(condition, Negation) else condition.parts
    return [field for part in parts for field in _fields_of(part)]
