"""An ablation as tables for a terminal, with notes on what figures mean, and as rows for CSV."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from tune_speed.core import text
from tune_speed.core.config import flatten
from tune_speed.core.records import CLOCK_WORDS, Status, Timing
from tune_speed.core.targets import SIGNS
from tune_speed.experiments.ablation import result as results
from tune_speed.experiments.ablation.design import Design
from tune_speed.experiments.ablation.effects import Estimate, Kind
from tune_speed.experiments.run_summary import WHOLE
from tune_speed.reporting.table import Column, Section, Table, fitting

TASK = (
    *("study", "part", "design", "workload_name", "workload_hash", "metric", "target", "mode"),
    *("evaluated_on", "device", "cpu_threads", "timing", "confidence"),
)
# Characters of an arm's name before it is folded.
NAME_WIDTH = 24
EFFECT_WIDTH = 30
# Smaller ones are shown as `<0.001`.
LEAST_P_VALUE = 0.001
MAIN_EFFECTS: Mapping[Design, str] = {
    "one-at-a-time": "alone, against the base",
    "stacking": "alone, against the base",
    "factorial": "main effects",
    "leave-one-out": "added last, to all the others",
    "cumulative": "added to the step before",
}


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
    missing = [name for name in results.GAINS.values() if getattr(arm, name) is None]
    whole = arm.model_copy(update=dict.fromkeys(missing, Estimate(value=None, n=0)))
    row = whole.model_dump(exclude={"name", "settings", "statuses", "tuning"})
    row |= {"notes": "; ".join(arm.notes), "stop_reasons": "; ".join(arm.stop_reasons)}
    row["success_rate"] = arm.success_rate
    columns = ((path.replace(".", "_"), value) for path, value in flatten(row).items())
    return {
        "arm": arm.name,
        "settings": json.dumps(arm.settings),
        **{status.value: arm.statuses.get(status, 0) for status in Status},
        **{name.removesuffix("_value"): value for name, value in columns},
    }


# --- Tables


def as_renderables(result: results.AblationResult) -> tuple[RenderableType, ...]:
    """Names are shown as they are: never as markup, nor with their control characters."""
    heading = Text(text.printable(title(result)), style="italic")
    arms = (_Arms(result), _notes(_arm_notes(result)))
    effects = (_effects_table(result), _notes(_effect_notes(result))) if result.effects else ()
    return (heading, *arms, *effects)


def title(result: results.AblationResult) -> str:
    part = f", {result.part}" if result.part else ""
    where = f" on {text.device_text(result.device)}" if result.device else ""
    goal = f"{result.metric} {SIGNS[result.target_mode]} {result.target:g}"
    return (
        f"{result.study}{part}: {result.workload_name}, {goal}{where};"
        f" {result.design}, {text.counted(result.seeds, 'seed')} an arm"
    )


def _notes(sentences: Iterator[str]) -> RenderableType:
    return Group(*(Text(text.printable(sentence), style="dim") for sentence in sentences), Text())


def _cell(arm: results.ArmResult, field: str, form: str) -> str:
    """Returns a figure above its interval; infinite ends are `∞`."""
    value, low, high = arm.ends(field)
    if value is None:
        return text.ABSENT
    texts = [format(each, form).rstrip(".") for each in (value, low, high) if each is not None]
    # Of a single run an interval is 0 to infinity.
    has_ends = len(texts) == 3 and (low, high) != (0.0, math.inf)
    shown = f"{texts[0]}\n{texts[1]}–{texts[2]}" if has_ends else texts[0]
    return shown.replace("inf", text.INFINITE)


ARMS: Mapping[str, tuple[str, str]] = {
    "s/epoch": ("epoch_s", "#.4g"),
    "speed-up": ("speed_up", ".2f"),
    "to target [s]": ("expected_s", "#.4g"),
    "sooner": ("time_to_target_factor", ".2f"),
    "met": ("success_rate", ".2f"),
    "accuracy": ("accuracy", ".4f"),
    "macro F1": ("macro_f1", ".4f"),
    "GiB": ("peak_memory_gib", ".2f"),
}
"""Heading, field and format."""
# What goes first where the terminal is narrow; CSV and JSON have all.
DROPPED = ("GiB", "macro F1", "s/epoch")


@dataclass(frozen=True)
class _Arms:
    """A row an arm, with as many of the columns as the terminal's width has room for."""

    result: results.AblationResult

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        arms = self.result.arms
        cells = {name: [_cell(arm, *how) for arm in arms] for name, how in ARMS.items()}
        used = [name for name, column in cells.items() if set(column) != {text.ABSENT}]
        layouts = [
            [name for name in used if name not in DROPPED[:count]]
            for count in range(len(DROPPED) + 1)
        ]
        tables = [
            _table(
                ("arm", *names),
                [(arm.name, *(cells[name][i] for name in names)) for i, arm in enumerate(arms)],
            )
            for names in layouts
        ]
        yield tables[fitting(tables, console, options)]
        yield Text()


def _table(headings: Sequence[str], rows: Any, width: int = NAME_WIDTH) -> Table:
    first, *others = headings
    columns = [Column(heading, no_wrap=True) for heading in others]
    return Table([Column(first, is_left=True, max_width=width), *columns], rows)


def kind_words(kind: Kind, design: Design) -> str:
    return "interactions" if kind == "interaction" else MAIN_EFFECTS[design]


def _effects_table(result: results.AblationResult) -> Table:
    score: results.Response = "macro_f1" if result.metric == "macro_f1" else "accuracy"
    ends = text.percent(result.confidence)
    rows: list[Section | Sequence[str]] = []
    for kind in results.KINDS:
        own = [
            (
                name,
                *_effect_cells(found.get("speed"), ".2f", "–"),
                *_effect_cells(found.get(score), "+.4f", " to "),
                "/".join(dict.fromkeys(str(each.n) for each in found.values())),
            )
            for name, found in result.effects_of(kind).items()
        ]
        rows += [Section(kind_words(kind, result.design)), *own] if own else []
    headings = ("effect", "speed", ends, "p", score.replace("_", " "), ends, "p", "n")
    return _table(headings, rows, EFFECT_WIDTH)


def _effect_cells(found: Estimate | None, form: str, joint: str) -> tuple[str, str, str]:
    if found is None or found.value is None:
        return (text.ABSENT, text.ABSENT, text.ABSENT)
    ends = [
        format(end, form)
        for end in (found.low, math.inf if found.high is None else found.high)
        if found.low is not None
    ]
    p_value = found.p_holm
    is_tiny = p_value is not None and p_value < LEAST_P_VALUE
    p_text = f"<{LEAST_P_VALUE:g}" if is_tiny else text.significant(p_value, 2)
    shown = joint.join(ends).replace("inf", text.INFINITE) or text.ABSENT
    return (format(found.value, form), shown, p_text)


# --- Notes: what a figure means, and what limits the trust


def _arm_notes(result: results.AblationResult) -> Iterator[str]:
    yield from _missing(result)
    yield from _tuning(result)
    yield (
        f"Below a figure its {text.percent(result.confidence)} interval. Speed-up: base's time per"
        " epoch over the arm's, geometric mean over seeds that have both. To target: expected time"
        " with restarts; sooner: base's time over the arm's. Met: share of the runs. Runs that"
        " failed, diverged or ran out of memory are misses, and in no mean. GiB: median of the"
        " peaks."
    )
    if result.mode == "anytime":
        yield "Runs stop where they meet the target: accuracies at the end hardly tell arms apart."
    kinds = [words for timing, words in CLOCK_WORDS.items() if result.timing.get(timing)]
    if kinds:
        others = f" ({', '.join(result.cotenants)})" if result.cotenants else ""
        yield f"Clock: {'; '.join(kinds)}{others}."
    if result.timing.get(Timing.ISOLATED):
        yield "Runs of one kind share a step time: intervals of speed lack what that varies by."
    yield from dict.fromkeys(note for arm in result.arms for note in arm.notes)


def _missing(result: results.AblationResult) -> Iterator[str]:
    for arm in result.arms:
        if arm.not_applicable is not None:
            yield f"Not applicable here ({arm.not_applicable}): {arm.name}."
    if result.done_runs < result.planned_runs:
        yield f"{result.done_runs} of {result.planned_runs} runs are done."
    for arm in result.arms:
        if arm.stop_reasons:
            broken = [f"{n} {s.value}" for s, n in arm.statuses.items() if s not in WHOLE]
            words = f"of {text.counted(arm.n, 'run')} {', '.join(broken)}"
            yield f"{arm.name}: {words} ({'; '.join(arm.stop_reasons)})."


def _tuning(result: results.AblationResult) -> Iterator[str]:
    if result.retune is None:
        yield "Nothing was re-tuned: arms have the base's learning rate, perhaps not their best."
    tuned = [arm for arm in result.arms if arm.lr_factor is not None]
    if tuned:
        edge = {True: " (the best of those tried is at their edge)"}
        words = (
            f"{a.name} ×{a.lr_factor:g}{edge.get(a.is_lr_at_edge or False, '')}" for a in tuned
        )
        yield f"`{result.retune}` was re-tuned for each arm: {'; '.join(words)}."


def _effect_notes(result: results.AblationResult) -> Iterator[str]:
    yield (
        "The first rows are means over all pairs of arms that differ by that change alone."
        " An interaction is the speed-up together over the product of the speed-ups alone: above 1"
        " they help one another, below 1 they overlap."
    )
    yield (
        "Speeds are factors of the time per epoch, others differences;"
        f" {text.percent(result.confidence)} intervals by Student's t over seeds as blocks, none"
        " where all seeds agree or there is one; p two-sided, Holm's over all rows of a response;"
        " n: seeds that have all arms of the row."
    )
