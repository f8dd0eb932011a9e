"""An ablation as tables for a terminal, and as rows for CSV."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tune_speed.core.records import Status
from tune_speed.core.targets import SIGNS
from tune_speed.core.text import INFINITE, printable
from tune_speed.experiments.ablation.design import Design
from tune_speed.experiments.ablation.effects import Estimate, Kind
from tune_speed.experiments.ablation.footnotes import (
    added_words,
    arm_notes,
    effect_notes,
    factor_text,
    interval_text,
)
from tune_speed.experiments.ablation.result import (
    AblationResult,
    ArmResult,
    EffectResult,
    Figure,
    Median,
    Response,
)
from tune_speed.reporting.table import fitting

JOINT = "; "
"""Between sentences in one cell."""


def csv_rows(result: AblationResult) -> list[dict[str, Any]]:
    """Returns a row an arm, the base first."""
    return [_arm_row(result, arm) for arm in result.arms]


def effect_rows(result: AblationResult) -> list[dict[str, Any]]:
    """Returns a row for each contrast of each response.

    `kind` is that of `effects`: `alone`, `together`, `added`, `main` or `interaction`. `value`,
    `low` and `high` are factors where the response is `speed`, else differences.
    """
    return [
        {
            "study": result.study,
            "part": result.part,
            "design": result.design,
            "response": effect.response,
            "kind": effect.kind,
            "effect": effect.name,
            "unit": "factor" if effect.response == "speed" else "difference",
            **effect.estimate.model_dump(),
        }
        for effect in result.effects
    ]


def _arm_row(result: AblationResult, arm: ArmResult) -> dict[str, Any]:
    return {
        **_task(result),
        "arm": arm.name,
        "settings": json.dumps(arm.settings),
        "not_applicable": arm.not_applicable,
        "lr_factor": arm.lr_factor,
        "is_lr_at_edge": arm.is_lr_at_edge,
        "n": arm.n,
        **{status.value: arm.statuses.get(status, 0) for status in Status},
        "hits": arm.hits,
        "success_rate": arm.success_rate,
        "success_rate_low": arm.success_low,
        "success_rate_high": arm.success_high,
        **_mean("epoch_s", arm.epoch_s),
        **_mean("images_per_s", arm.images_per_s),
        **_mean("accuracy", arm.accuracy),
        **_mean("macro_f1", arm.macro_f1),
        **_mean("fed_ratio", arm.fed_ratio),
        **_median_rows("peak_memory_gib", arm.peak_memory_gib),
        **_median_rows("time_to_target_s", arm.time_to_target_s),
        **_expected_rows(arm),
        **_median_rows("epochs_to_convergence", arm.epochs_to_convergence),
        **_estimate("speed_up", arm.speed_up),
        **_estimate("s_mixed", arm.s_mixed),
        **_estimate("accuracy_gain", arm.accuracy_gain),
        **_estimate("macro_f1_gain", arm.macro_f1_gain),
        **_sooner_rows(arm),
        "notes": JOINT.join(arm.notes),
        "stop_reasons": JOINT.join(arm.stop_reasons),
    }


def _task(result: AblationResult) -> dict[str, Any]:
    """Returns what all arms have in common."""
    return {
        "study": result.study,
        "part": result.part,
        "design": result.design,
        "workload": result.workload_name,
        "workload_hash": result.workload_hash,
        "metric": result.metric,
        "target": result.target,
        "mode": result.mode,
        "evaluated_on": result.evaluated_on,
        "device": result.device,
        "cpu_threads": result.cpu_threads,
        "timing": ", ".join(sorted(result.timing)),
        "confidence": result.confidence,
    }


def _mean(name: str, figure: Figure) -> dict[str, Any]:
    return {
        f"{name}_mean": figure.mean,
        f"{name}_sd": figure.sd,
        f"{name}_low": figure.low,
        f"{name}_high": figure.high,
        f"{name}_n": figure.n,
    }


def _median_rows(name: str, figure: Median) -> dict[str, Any]:
    ends = {"median": figure.median, "low": figure.low, "high": figure.high}
    return {
        **{f"{name}_{end}": _or_inf(value, is_known=figure.n > 0) for end, value in ends.items()},
        f"{name}_confidence": figure.confidence if figure.n else None,
        f"{name}_n": figure.n,
    }


def _expected_rows(arm: ArmResult) -> dict[str, Any]:
    times_s = {
        "expected_s": arm.expected_s,
        "expected_s_low": arm.expected_low_s,
        "expected_s_high": arm.expected_high_s,
    }
    return {name: _or_inf(time_s, is_known=arm.n > 0) for name, time_s in times_s.items()}


def _estimate(name: str, found: Estimate | None) -> dict[str, Any]:
    fields: Mapping[str, Any] = found.model_dump() if found else {}
    return {
        name: fields.get("value"),
        f"{name}_low": fields.get("low"),
        f"{name}_high": fields.get("high"),
        f"{name}_p": fields.get("p_value"),
        f"{name}_p_holm": fields.get("p_holm"),
        f"{name}_n": fields.get("n", 0),
    }


def _sooner_rows(arm: ArmResult) -> dict[str, Any]:
    is_known = arm.time_to_target_pairs > 0
    has_ends = arm.time_to_target_low is not None
    return {
        "time_to_target_factor": _or_inf(arm.time_to_target_factor, is_known=is_known),
        "time_to_target_factor_low": arm.time_to_target_low,
        "time_to_target_factor_high": _or_inf(arm.time_to_target_high, is_known=has_ends),
        "time_to_target_factor_p": arm.time_to_target_p,
        "time_to_target_factor_p_holm": arm.time_to_target_p_holm,
        "time_to_target_factor_n": arm.time_to_target_pairs,
        "time_to_target_factor_method": arm.time_to_target_method or None,
    }


def _or_inf(value: float | None, *, is_known: bool) -> float | None:
    return math.inf if value is None and is_known else value


__all__ = ["as_renderables", "csv_rows", "effect_rows"]

ABSENT = "–"
NAME_WIDTH = 24
"""Characters of an arm's name before it is folded."""
EFFECT_WIDTH = 30
SCORE_DIGITS = 4
LEAST_P_VALUE = 0.001
"""Smaller ones are not written out."""
Cell = Callable[[ArmResult], tuple[str, ...]]


def as_renderables(result: AblationResult) -> tuple[RenderableType, ...]:
    """Returns the arms' tables, and that of the effects where there are any, with their notes.

    Names are shown as they are: never as markup, nor do their control characters reach a terminal.
    """
    heading = Text(printable(title(result)), style="italic")
    tables = (_Arms(result.arms, SPEED), _Arms(result.arms, QUALITY))
    effects = (_effects_table(result), _notes(effect_notes(result))) if result.effects else ()
    return (heading, *tables, _notes(arm_notes(result)), *effects)


def title(result: AblationResult) -> str:
    """Returns what was ablated, how, and where."""
    part = f", {result.part}" if result.part else ""
    where = f" on {result.device}" if result.device else ""
    goal = f"{result.metric} {SIGNS[result.target_mode]} {result.target:g}"
    return (
        f"{result.study}{part}: {result.workload_name}, {goal}{where};"
        f" {result.design}, {result.seeds} {'seed' if result.seeds == 1 else 'seeds'} an arm"
    )


def _notes(sentences: Sequence[str]) -> RenderableType:
    return Group(*(Text(printable(sentence), style="dim") for sentence in sentences), Text())


def _figure(read: Callable[[ArmResult], Figure], digits: int | None = None) -> Cell:
    """Returns a function that writes a mean, and its standard deviation below it."""

    def cell(arm: ArmResult) -> tuple[str, ...]:
        found = read(arm)
        if found.mean is None:
            return (ABSENT,)
        places = _places(found.mean) if digits is None else digits
        sd = () if found.sd is None else (f"± {found.sd:.{places}f}",)
        return (f"{found.mean:.{places}f}", *sd)

    return cell


def _factor(read: Callable[[ArmResult], Estimate | None]) -> Cell:
    def cell(arm: ArmResult) -> tuple[str, ...]:
        found = read(arm)
        return (ABSENT,) if found is None else _factor_lines(found)

    return cell


def _factor_lines(found: Estimate) -> tuple[str, ...]:
    value, _, ends = factor_text(found).partition(" ")
    return (value, ends.strip("()")) if ends else (value,)


def _places(value: float) -> int:
    """Returns the decimals with which `value` has four digits."""
    return max(0, 3 - math.floor(math.log10(abs(value)))) if value else 1


def _seconds(value: float | None) -> str:
    return INFINITE if value is None else f"{value:.{_places(value)}f}"


def _hits(arm: ArmResult) -> tuple[str, ...]:
    if not arm.n:
        return (ABSENT,)
    return (f"{arm.hits}/{arm.n}", f"{arm.success_low:.2f}–{arm.success_high:.2f}")


def _median(arm: ArmResult) -> tuple[str, ...]:
    return (_seconds(arm.time_to_target_s.median),) if arm.n else (ABSENT,)


def _expected(arm: ArmResult) -> tuple[str, ...]:
    if not arm.n:
        return (ABSENT,)
    low, high = arm.expected_low_s, arm.expected_high_s
    # A single run leaves everything open.
    ends = (f"{_seconds(low)}–{_seconds(high)}",) if low or high else ()
    return (_seconds(arm.expected_s), *ends)


def _sooner(arm: ArmResult) -> tuple[str, ...]:
    if not arm.time_to_target_pairs:
        return (ABSENT,)
    low, high = arm.time_to_target_low, arm.time_to_target_high
    ends = (f"{_decimals(low)}–{_decimals(high)}",) if low is not None and (low or high) else ()
    return (f"{_decimals(arm.time_to_target_factor)}×", *ends)


def _decimals(factor: float | None) -> str:
    return INFINITE if factor is None else f"{factor:.2f}"


def _gain(arm: ArmResult) -> tuple[str, ...]:
    value, ends, _ = _gain_cells(arm.accuracy_gain)
    return (value,) if ends == ABSENT else (value, ends)


def _memory(arm: ArmResult) -> tuple[str, ...]:
    gib = arm.peak_memory_gib.median
    return (ABSENT,) if gib is None else (f"{gib:.2f}",)


SPEED: Mapping[str, Cell] = {
    "arm": lambda arm: (arm.name,),
    "s/epoch": _figure(lambda arm: arm.epoch_s),
    "images/s": _figure(lambda arm: arm.images_per_s),
    "speed-up": _factor(lambda arm: arm.speed_up),
    "S_mixed": _factor(lambda arm: arm.s_mixed),
    "to target\nmedian [s]": _median,
    "to target\nexpected [s]": _expected,
    "sooner": _sooner,
}
"""Columns of the first table: lines of a cell by heading."""
QUALITY: Mapping[str, Cell] = {
    "arm": lambda arm: (arm.name,),
    "met": _hits,
    "accuracy": _figure(lambda arm: arm.accuracy, SCORE_DIGITS),
    "gain": _gain,
    "macro F1": _figure(lambda arm: arm.macro_f1, SCORE_DIGITS),
    "fed": _figure(lambda arm: arm.fed_ratio, 2),
    "GiB": _memory,
}
"""Columns of the second."""
DROPPED = ("images/s", "fed", "gain", "to target\nmedian [s]", "S_mixed", "GiB", "macro F1")
"""What goes first where the terminal is narrow; CSV and JSON have all."""


@dataclass(frozen=True)
class _Arms:
    """A row an arm, with as many of the columns as the terminal's width has room for."""

    arms: Sequence[ArmResult]
    columns: Mapping[str, Cell]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        told = {name: {cell(arm) for arm in self.arms} for name, cell in self.columns.items()}
        used = [name for name, cells in told.items() if cells != {(ABSENT,)}]
        layouts = [
            [name for name in used if name not in DROPPED[:count]]
            for count in range(len(DROPPED) + 1)
        ]
        tables = [self._table(names) for names in layouts]
        chosen = fitting(tables, console, options)
        yield tables[chosen]
        left_out = [name.replace("\n", ", ") for name in used if name not in layouts[chosen]]
        if left_out:
            yield Text(f"No room here, but in the CSV: {'; '.join(left_out)}.", style="dim")
        yield Text()

    def _table(self, names: Sequence[str]) -> Table:
        table = _table()
        for name in names:
            if name == "arm":
                table.add_column(name, overflow="fold", max_width=NAME_WIDTH)
            else:
                table.add_column(Text(name, justify="right"), justify="right", no_wrap=True)
        for arm in self.arms:
            table.add_row(*(_cell(self.columns[name](arm)) for name in names))
        return table


def _cell(lines: Sequence[str]) -> Text:
    return Text("\n".join(printable(line) for line in lines))


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, collapse_padding=True, show_edge=False, pad_edge=False)


def _sections(design: Design) -> Mapping[Kind, str]:
    return {
        "alone": "alone, against the base",
        "together": "together, against the base",
        "added": added_words(design),
        "main": "main effects",
        "interaction": "interactions",
    }


def _effects_table(result: AblationResult) -> Table:
    """Returns a row an effect: what it does to speed, and to the target's metric."""
    score: Response = "macro_f1" if result.metric == "macro_f1" else "accuracy"
    table = _table()
    table.add_column("effect", overflow="fold", max_width=EFFECT_WIDTH)
    interval = f"{100 * result.confidence:.3g} %"
    headings = ("speed", interval, "p", score.replace("_", " "), interval, "p", "n")
    for heading in headings:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    by_name: dict[tuple[Kind, str], dict[Response, EffectResult]] = {}
    for effect in result.effects:
        by_name.setdefault((effect.kind, effect.name), {})[effect.response] = effect
    for kind, section in _sections(result.design).items():
        own = [by_response for (its_kind, _), by_response in by_name.items() if its_kind == kind]
        if own:
            table.add_row(Text(section, style="italic"))
        for by_response in own:
            table.add_row(*_effect_cells(by_response, score))
        table.add_section()
    return table


def _effect_cells(by_response: Mapping[Response, EffectResult], score: Response) -> list[Text]:
    found = {response: effect.estimate for response, effect in by_response.items()}
    name = next(iter(by_response.values())).name
    counts = dict.fromkeys(str(found[key].n) for key in ("speed", score) if key in found)
    cells = [
        name,
        *_speed_cells(found.get("speed")),
        *_gain_cells(found.get(score)),
        "/".join(counts),
    ]
    return [Text(printable(cell)) for cell in cells]


def _speed_cells(found: Estimate | None) -> tuple[str, str, str]:
    if found is None:
        return (ABSENT, ABSENT, ABSENT)
    value = INFINITE if found.value is None else f"{found.value:.2f}×"
    return (value, interval_text(found) or ABSENT, _p_text(found))


def _gain_cells(found: Estimate | None) -> tuple[str, str, str]:
    if found is None or found.value is None:
        return (ABSENT, ABSENT, ABSENT)
    ends = interval_text(found, digits=SCORE_DIGITS, sign="+")
    return (f"{found.value:+.{SCORE_DIGITS}f}", ends or ABSENT, _p_text(found))


def _p_text(found: Estimate) -> str:
    p_value = found.p_value if found.p_holm is None else found.p_holm
    if p_value is None:
        return ABSENT
    return f"{p_value:.2g}" if p_value >= LEAST_P_VALUE else f"<{LEAST_P_VALUE:g}"
