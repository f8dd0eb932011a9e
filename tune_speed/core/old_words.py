"""Sentences of earlier versions as kinds and figures: the only place with patterns over them.

Ledgers, records, certificates and MLflow's tags were written in sentences. Those that are still
made are read by their templates in `words`; a template that changes leaves its old form here.
"""

import math
import re
from collections.abc import Iterable
from functools import cache
from string import Formatter

Figures = dict[str, str | int | float]

_OLDER = {
    "StopKind": (
        (
            "slower",
            "stopped at {at_s:n} s:{:any} leader {best} met the target in {best_s:n} s{:any}",
        ),
        ("by_hand", "stopped by hand{:any}"),
        ("unlikely", "{:any}likely to {:any}"),
        ("error", "{:dotted}{error:name}:{:any}"),
    ),
    "ProposalKind": (("gain", "gain: {chance:.0%} likely to meet the target{:any}"),),
}
_FORMS = {
    "": ".+?",
    "any": ".*",
    "dotted": r"(?:\w+\.)*",
    "name": r"[A-Za-z_]\w{0,40}",  # Bounded, as what a stranger wrote may be one endless word.
}
_NUMBER = r"-?(?:[\d.,]+(?:e[+-]?\d+)?|inf|nan)\b"
_DEVICE = re.compile(r"(?:(\d+) x )?(?:cpu \((\d+) threads, (.+)\)|(.*))", re.DOTALL)


def read(
    name: str, templates: Iterable[tuple[str, str]], text: str, *, suffix: str
) -> tuple[str, Figures]:
    """Returns kind and figures of a sentence; what no version is known to have made is `other`.

    `templates` are those of the kinds of the enum `name` today; `suffix` may follow each.
    """
    for kind, template in (*((k, t + suffix) for k, t in templates), *_OLDER.get(name, ())):
        # To compile every pattern takes 10 ms.
        if not text.startswith(re.split(r"[\[{]", template, maxsplit=1)[0]):
            continue
        pattern, numbers = _pattern(template)
        if found := pattern.fullmatch(text):
            known = {n: v for n, v in found.groupdict().items() if v is not None}
            return kind, {n: _number(v) if n in numbers else v for n, v in known.items()}
    return "other", {}


def read_device(text: str) -> dict[str, str | int | None]:
    """Returns the fields of a device that was named `2 x NVIDIA H200` or `cpu (2 threads, …)`."""
    count, threads, processor, name = _DEVICE.fullmatch(text).groups()  # type: ignore[union-attr]
    if processor is None and name.startswith("cpu"):
        threads = 0
    return {"type": processor or name, "count": int(count or 1), "threads": threads}


@cache
def _pattern(template: str) -> tuple[re.Pattern[str], frozenset[str]]:
    numbers, parts = set[str](), list[str]()
    for i, piece in enumerate(template.replace("]", "[").split("[")):
        places = ""
        for before, name, form, _ in Formatter().parse(piece):
            places += re.escape(before)
            if name is None or form is None:
                continue
            one, _, noun = form.partition(" ")
            written = _FORMS.get(form) or (r"[\d.]+%" if form.endswith("%") else _NUMBER)
            written = re.escape(form[1:]) if form[:1] == "?" else written
            written = r"[<>]?[\d.]+%" if form == "chance" else written
            numbers |= set() if form in _FORMS else {name}
            places += f"(?P<{name}>{written})" if name else written
            places += f" {noun}s?" if one == "counted" else ""
        parts.append(f"(?:{places})?" if i % 2 else places)
    return re.compile("".join(parts), re.DOTALL), frozenset(numbers)


def _number(text: str) -> str | int | float:
    try:
        number = float(text.replace(",", "").removesuffix("%"))
    except ValueError:
        return 1  # A flag, whose sentence has no number.
    if not math.isfinite(number):
        return text
    is_whole = not set(text) & set(".e%")
    return int(number) if is_whole else number / 100 if text.endswith("%") else number
