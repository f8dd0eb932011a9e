"""An ablation as tables for a terminal, and as rows for CSV."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from tune_speed.core.records import Status
from tune_speed.core.targets import SIGNS
from tune_speed.core.text import (
    ABSENT,
    INFINITE,
    counted,
    device_text,
    factor,
    fixed,
    percent,
    printable,
    significant,
)
from tune_speed.experiments.ablation import footnotes
from tune_speed.experiments.ablation import result as results
from tune_speed.experiments.ablation.effects import Estimate
from tune_speed.reporting.table import Column, Section, Table, fitting

JOINT = "; "
TASK = (
    *("study", "part", "design", "workload_name", "workload_hash", "metric", "target", "mode"),
    *("evaluated_on", "device", "cpu_threads", "timing", "confidence"),
)
PLAIN = ("not_applicable", "lr_factor", "is_lr_at_edge", "n")
# Characters of an arm's name before it is folded.
NAME_WIDTH = 24
EFFECT_WIDTH = 30
SCORE_DIGITS = 4
# Smaller ones are shown as `<0.001`.
LEAST_P_VALUE = 0.001
Cell = Callable[[results.ArmResult], str]


def csv_rows(result: results.AblationResult) -> list[dict[str, Any]]:
    task = {name.removesuffix("_name"): getattr(result, name) for name in TASK}
    task["timing"] = ", ".join(sorted(result.timing))
    return [{**task, **_arm_row(arm)} for arm in result.arms]


def effect_rows(result: results.AblationResult) -> list[dict[str, Any]]:
    """`value`, `low` and `high` are factors where the response is `speed`, else differences."""
    return [
        {
            **{name: getattr(result, name) for name in ("study", "part", "design")},
            "response": effect.response,
            "kind": effect.kind,
            "effect": effect.name,
            "unit": "factor" if effect.response == "speed" else "difference",
            **effect.estimate.model_dump(),
        }
        for effect in result.effects
    ]


def _arm_row(arm: results.ArmResult) -> dict[str, Any]:
    is_known = arm.time_to_target_pairs > 0
    high_is_known = arm.time_to_target_low is not None
    return {
        "arm": arm.name,
        "settings": json.dumps(arm.settings),
        **{name: getattr(arm, name) for name in PLAIN},
        **{status.value: arm.statuses.get(status, 0) for status in Status},
        "hits": arm.hits,
        "success_rate": arm.success_rate,
        "success_rate_low": arm.success_low,
        "success_rate_high": arm.success_high,
        **_columns(arm, *results.MEANS, "peak_memory_gib", "time_to_target_s"),
        "expected_s": _or_inf(arm.expected_s, is_known=arm.n > 0),
        "expected_s_low": _or_inf(arm.expected_low_s, is_known=arm.n > 0),
        "expected_s_high": _or_inf(arm.expected_high_s, is_known=arm.n > 0),
        **_columns(arm, "epochs_to_convergence"),
        **_columns(arm, "speed_up", "s_mixed", "accuracy_gain", "macro_f1_gain"),
        "time_to_target_factor": _or_inf(arm.time_to_target_factor, is_known=is_known),
        "time_to_target_factor_low": arm.time_to_target_low,
        "time_to_target_factor_high": _or_inf(arm.time_to_target_high, is_known=high_is_known),
        "time_to_target_factor_p": arm.time_to_target_p,
        "time_to_target_factor_p_holm": arm.time_to_target_p_holm,
        "time_to_target_factor_n": arm.time_to_target_pairs,
        "time_to_target_factor_method": arm.time_to_target_method or None,
        "notes": JOINT.join(arm.notes),
        "stop_reasons": JOINT.join(arm.stop_reasons),
    }


def _columns(arm: results.ArmResult, *names: str) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in names:
        found: results.Figure | results.Median | Estimate | None = getattr(arm, name)
        ends: dict[str, Any] = {} if found is None else found.model_dump()
        if isinstance(found, results.Figure):
            order = ["mean", "sd", "low", "high"]
        elif isinstance(found, results.Median):
            order = ["median", "low", "high", "confidence"]
            ends = {e: _or_inf(value, is_known=found.n > 0) for e, value in ends.items()}
            ends["confidence"] = found.confidence if found.n else None
        else:
            order = ["", "low", "high", "p", "p_holm"]
            ends = {"": ends.get("value"), "p": ends.get("p_value"), **ends}
        row |= {f"{name}_{end}".rstrip("_"): ends.get(end) for end in order}
        row[f"{name}_n"] = ends.get("n", 0)
    return row


def _or_inf(value: float | None, *, is_known: bool) -> float | None:
    return math.inf if value is None and is_known else value


def as_renderables(result: results.AblationResult) -> tuple[RenderableType, ...]:
    """Names are shown as they are: never as markup, nor with their control characters."""
    heading = Text(printable(title(result)), style="italic")
    tables = (_Arms(result.arms, SPEED), _Arms(result.arms, QUALITY))
    effects = (
        (_effects_table(result), _notes(footnotes.effect_notes(result))) if result.effects else ()
    )
    return (heading, *tables, _notes(footnotes.arm_notes(result)), *effects)


def title(result: results.AblationResult) -> str:
    part = f", {result.part}" if result.part else ""
    where = f" on {device_text(result.device)}" if result.device else ""
    goal = f"{result.metric} {SIGNS[result.target_mode]} {result.target:g}"
    return (
        f"{result.study}{part}: {result.workload_name}, {goal}{where};"
        f" {result.design}, {counted(result.seeds, 'seed')} an arm"
    )


def _notes(sentences: Sequence[str]) -> RenderableType:
    return Group(*(Text(printable(sentence), style="dim") for sentence in sentences), Text())


def _figure(name: str, digits: int | None = None) -> Cell:
    def cell(arm: results.ArmResult) -> str:
        found: results.Figure = getattr(arm, name)
        if found.mean is None:
            return ABSENT
        places = _places(found.mean) if digits is None else digits
        sd = "" if found.sd is None else f"\n± {found.sd:.{places}f}"
        return f"{found.mean:.{places}f}{sd}"

    return cell


def _factor(found: Estimate | None) -> str:
    if found is None:
        return ABSENT
    ends = footnotes.interval_text(found)
    return factor(found.value) + (f"\n{ends}" if ends else "")


def _places(value: float) -> int:
    return max(0, 3 - math.floor(math.log10(abs(value)))) if value else 1


def _seconds(value: float | None) -> str:
    return INFINITE if value is None else f"{value:.{_places(value)}f}"


def _expected(arm: results.ArmResult) -> str:
    if not arm.n:
        return ABSENT
    low, high = arm.expected_low_s, arm.expected_high_s
    # The interval of a single run is 0 to infinity.
    ends = f"\n{_seconds(low)}–{_seconds(high)}" if low or high else ""
    return f"{_seconds(arm.expected_s)}{ends}"


def _sooner(arm: results.ArmResult) -> str:
    if not arm.time_to_target_pairs:
        return ABSENT
    low, high = arm.time_to_target_low, arm.time_to_target_high
    has_ends = low is not None and (low or high)
    ends = f"\n{fixed(low, 2)}–{fixed(high, 2, none=INFINITE)}" if has_ends else ""
    return f"{factor(arm.time_to_target_factor, none=f'{INFINITE}×')}{ends}"


def _gain(arm: results.ArmResult) -> str:
    value, ends, _ = _estimate_cells(arm.accuracy_gain, is_factor=False)
    return value if ends == ABSENT else f"{value}\n{ends}"


SPEED: Mapping[str, Cell] = {
    "arm": lambda arm: arm.name,
    "s/epoch": _figure("epoch_s"),
    "images/s": _figure("images_per_s"),
    "speed-up": lambda arm: _factor(arm.speed_up),
    "S_mixed": lambda arm: _factor(arm.s_mixed),
    "to target\nmedian [s]": lambda arm: _seconds(arm.time_to_target_s.median) if arm.n else ABSENT,
    "to target\nexpected [s]": _expected,
    "sooner": _sooner,
}
QUALITY: Mapping[str, Cell] = {
    "arm": lambda arm: arm.name,
    "met": lambda arm: (
        f"{arm.hits}/{arm.n}\n{arm.success_low:.2f}–{arm.success_high:.2f}" if arm.n else ABSENT
    ),
    "accuracy": _figure("accuracy", SCORE_DIGITS),
    "gain": _gain,
    "macro F1": _figure("macro_f1", SCORE_DIGITS),
    "fed": _figure("fed_ratio", 2),
    "GiB": lambda arm: fixed(arm.peak_memory_gib.median, 2),
}
# What goes first where the terminal is narrow; CSV and JSON have all.
DROPPED = ("images/s", "fed", "gain", "to target\nmedian [s]", "S_mixed", "GiB", "macro F1")


@dataclass(frozen=True)
class _Arms:
    """A row an arm, with as many of the columns as the terminal's width has room for."""

    arms: Sequence[results.ArmResult]
    columns: Mapping[str, Cell]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = {name: [cell(arm) for arm in self.arms] for name, cell in self.columns.items()}
        used = {name: column for name, column in cells.items() if set(column) != {ABSENT}}
        layouts = [
            [name for name in used if name not in DROPPED[:count]]
            for count in range(len(DROPPED) + 1)
        ]
        tables = [
            Table(
                [_column(name, NAME_WIDTH if name == "arm" else None) for name in names],
                zip(*(used[name] for name in names), strict=True),
            )
            for names in layouts
        ]
        chosen = fitting(tables, console, options)
        yield tables[chosen]
        left_out = [name.replace("\n", ", ") for name in used if name not in layouts[chosen]]
        if left_out:
            yield Text(f"No room here, but in the CSV: {'; '.join(left_out)}.", style="dim")
        yield Text()


def _column(heading: str, width: int | None = None) -> Column:
    is_left = width is not None
    return Column(heading, is_left=is_left, max_width=width, no_wrap=not is_left)


def _effects_table(result: results.AblationResult) -> Table:
    score: results.Response = "macro_f1" if result.metric == "macro_f1" else "accuracy"
    interval = percent(result.confidence)
    headings = ("speed", interval, "p", score.replace("_", " "), interval, "p", "n")
    rows: list[Section | Sequence[str]] = []
    for kind in footnotes.KINDS:
        own = [
            (name, *_effect_cells(found, score)) for name, found in result.effects_of(kind).items()
        ]
        rows += [Section(footnotes.kind_words(kind, result.design)), *own] if own else []
    return Table([_column("effect", EFFECT_WIDTH), *map(_column, headings)], rows)


def _effect_cells(found: Mapping[results.Response, Estimate], score: results.Response) -> list[str]:
    counts = dict.fromkeys(str(found[key].n) for key in ("speed", score) if key in found)
    speed, gain = found.get("speed"), found.get(score)
    cells = (*_estimate_cells(speed, is_factor=True), *_estimate_cells(gain, is_factor=False))
    return [*cells, "/".join(counts)]


def _estimate_cells(found: Estimate | None, *, is_factor: bool) -> tuple[str, str, str]:
    if found is None or (found.value is None and not is_factor):
        return (ABSENT, ABSENT, ABSENT)
    value, ends = factor(found.value, none=INFINITE), footnotes.interval_text(found)
    if not is_factor:
        value = f"{found.value:+.{SCORE_DIGITS}f}"
        ends = footnotes.interval_text(found, digits=SCORE_DIGITS, sign="+")
    p_value = found.p_value if found.p_holm is None else found.p_holm
    is_shown = p_value is None or p_value >= LEAST_P_VALUE
    p_text = significant(p_value, 2) if is_shown else f"<{LEAST_P_VALUE:g}"
    return (value, ends or ABSENT, p_text)
