"""Figures, moments and names in the words of a page."""

import re
from collections.abc import Mapping, Sequence

from tune_speed.core.records import Evaluation, RunResult
from tune_speed.core.text import ABSENT, compact, moment_of


def seconds(value_s: float | None) -> str:
    """Returns `0.812 s`, `84.3 s`, `1,234 s` or `5.2 h`; a dash for None."""
    if value_s is None:
        return ABSENT
    return f"{value_s / 3600:,.1f} h" if value_s >= 7200 else f"{compact(value_s)} s"


def setting(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def moment(text: str) -> str:
    """Returns `2026-11-21 17:23:32 UTC` from ISO 8601; what is no such moment stays as it is."""
    parsed = moment_of(text)
    return text or ABSENT if parsed is None else parsed.strftime("%Y-%m-%d %H:%M:%S UTC")


def file_stem(text: str) -> str:
    """Returns `text` as a file can be named without quotes in a shell."""
    return re.sub(r"[^\w.-]", "_", text) or "_"


def web_address(url: str | None) -> str | None:
    """Returns `url` if a page may link to it; anything but http and https runs or reads locally."""
    return url if url is not None and re.match(r"https?://", url) else None


def told_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Returns the tags that people read: not those in JSON, even if cut into parts."""
    packed = {name for name, value in tags.items() if value.startswith(("{", "["))}
    return {k: v for k, v in tags.items() if packed.isdisjoint((k, re.sub(r"\.\d+$", "", k)))}


def clock_text(run: RunResult) -> str:
    words = [run.timing.value]
    if run.slowdown is not None and run.shared_train_s is not None:
        words.append(f"{run.shared_train_s:.3f} s passed, {run.slowdown:.2f} times as long")
    if run.cotenants:
        words.append(f"beside {', '.join(run.cotenants)}")
    return "; ".join([*words, *map(str, run.note)])


def measured_names(evaluations: Sequence[Evaluation]) -> list[str]:
    """Returns the metrics that some evaluation has."""
    fields = ("accuracy", "macro_f1", "micro_f1", "loss", "train_loss")
    own = (name for evaluation in evaluations for name in evaluation.values)
    names = dict.fromkeys((*fields, *own))
    return [name for name in names if any(e.value(name) is not None for e in evaluations)]
