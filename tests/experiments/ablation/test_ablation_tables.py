import csv
import io
import math

import pytest
from helpers.experiments.ablations import FULL_WORKLOAD, ablated, make_run, planted
from rich.console import Console

from tune_speed.core.records import Status, Timing
from tune_speed.experiments.ablation.design import Design
from tune_speed.experiments.ablation.result import AblationResult, TuningPoint
from tune_speed.experiments.ablation.tables import as_renderables, csv_rows, effect_rows
from tune_speed.reporting.table import Table

AXES = {"accumulation_steps": 2, "precision": "bf16", "loader.pin_memory": True}
LN_SPEEDS = {"accumulation_steps=2": 0.1, "precision=bf16": 0.4, "loader.pin_memory=true": 0.02}
PINNED = "loader.pin_memory=true"


def text_of(result: AblationResult, *, width: int = 100) -> str:
    out = io.StringIO()
    console = Console(width=width, file=out)
    for renderable in as_renderables(result):
        console.print(renderable)
    return out.getvalue()


def flat(text: str) -> str:
    return " ".join(text.split())


def factorial(*, synergy: float = 0.0) -> AblationResult:
    runs = planted(AXES, design="factorial", ln_speeds=LN_SPEEDS, synergy=synergy)
    return ablated(runs, axes=AXES, design="factorial", seeds=5)


def three_arms() -> AblationResult:
    axes = {"loader.pin_memory": True, "precision": "bf16"}
    runs = planted(axes, design="one-at-a-time", ln_speeds=LN_SPEEDS, seeds=3)
    del runs[PINNED]
    return ablated(runs, axes=axes, not_applicable={PINNED: "it needs CUDA"})


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_the_terminal_with_all_that_was_asked(width: int) -> None:
    text = text_of(factorial(), width=width)
    assert max(map(len, text.splitlines())) <= width
    for heading in ("s/epoch", "speed-up", "expected [s]", "met", "accuracy", "macro F1"):
        assert heading in text
    # Names fold, figures never do.
    assert "…" not in text


def test_hundred_columns_have_room_for_memory_and_s_mixed() -> None:
    text = text_of(factorial())
    assert all(heading in text for heading in ("S_mixed", "GiB", "median [s]", "sooner"))


def test_arm_that_is_not_applicable_has_dashes_and_its_reason_below() -> None:
    text = text_of(three_arms())
    rows = [line.split() for line in text.splitlines() if line.startswith(PINNED)]
    assert rows and all(set(row[1:]) == {"–"} for row in rows)
    assert f"Not applicable here (it needs CUDA): {PINNED}." in text


def test_cells_are_the_results_figures() -> None:
    """Twice as fast with either seed, so without an interval; 0.94 less 0.95."""
    runs = {
        "base": [make_run(seed=s, time_s=t) for s, t in ((0, 8.0), (1, 12.0))],
        "batch_size=64": [
            make_run(seed=s, time_s=t, accuracy=0.94) for s, t in ((0, 4.0), (1, 6.0))
        ],
    }
    lines = text_of(ablated(runs, axes={"batch_size": 64}, seeds=2)).splitlines()
    speed, quality, effect = (line.split() for line in lines if line.startswith("batch_size=64"))
    assert speed == ["batch_size=64", "5.000", "66.67", "2.00×", "5.000", "5.000", "2.00×"]
    assert quality == ["batch_size=64", "2/2", "0.9400", "-0.0100", "0.4700", "0.50"]
    assert effect == ["batch_size=64", "2.00×", "–", "0.5", "-0.0100", "–", "0.5", "2"]


def test_miss_is_no_number_in_the_table() -> None:
    own = [make_run(seed=s, time_s=5.0, accuracy=0.5, status=Status.MISSED) for s in (0, 1)]
    runs = {"base": [make_run(seed=s, time_s=9.0) for s in (0, 1)], "batch_size=64": own}
    result = ablated(runs, axes={"batch_size": 64}, seeds=2)
    lines = [line.split() for line in text_of(result).splitlines() if "batch_size=64" in line]
    assert lines[0][4:] == ["∞", "∞", "0.00×"] and lines[1][1] == "0/2"
    row = csv_rows(result)[1]
    assert (row["time_to_target_s_median"], row["expected_s"]) == (math.inf, math.inf)
    assert row["time_to_target_factor"] == 0.0


def test_runs_that_broke_are_told_with_their_reasons() -> None:
    runs = {
        "base": [make_run(seed=0, time_s=8.0)],
        "batch_size=64": [make_run(seed=0, time_s=1.0, status=Status.DIVERGED)],
    }
    text = text_of(ablated(runs, axes={"batch_size": 64}, seeds=2))
    assert "batch_size=64: of 1 run 1 diverged (ended as diverged)." in text
    assert "2 of 4 runs are done." in text


def test_interactions_are_put_in_words() -> None:
    both = "accumulation_steps=2 × precision=bf16 "
    assert f"They help one another: {both}" in flat(text_of(factorial(synergy=0.5)))
    assert f"They overlap: {both}" in flat(text_of(factorial(synergy=-0.5)))
    undecided = "Whether they help one another or overlap is not decided: accumulation_steps=2 ×"
    assert undecided in flat(text_of(factorial()))


@pytest.mark.parametrize(
    ("design", "section", "names"),
    [
        ("leave-one-out", "added last, to all the others", list(LN_SPEEDS)),
        ("cumulative", "added to the step before", list(LN_SPEEDS)[1:]),
    ],
)
def test_what_a_change_adds_has_a_section_and_a_note(
    design: Design, section: str, names: list[str]
) -> None:
    result = ablated(planted(AXES, design=design, ln_speeds=LN_SPEEDS), axes=AXES, design=design)
    lines = text_of(result).splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == section)
    assert [line.split()[0] for line in lines[start + 1 : start + 1 + len(names)]] == names
    text = flat(text_of(result))
    assert "Added: an arm against the same one without that change" in text
    assert ("The first step is the one alone." in text) == (design == "cumulative")
    rows = [row for row in effect_rows(result) if row["kind"] == "added"]
    assert [row["effect"] for row in rows if row["response"] == "speed"] == names


def test_factorial_has_nothing_added() -> None:
    assert "dded" not in text_of(factorial())


def test_retuned_rates_are_told_and_marked_at_the_edge() -> None:
    points = [TuningPoint(factor=f, metric=0.9, status=Status.REACHED) for f in (0.3, 1.0, 3.0)]
    names = ("base", "batch_size=64")
    result = ablated(
        {},
        axes={"batch_size": 64},
        retune="lr",
        tuning=dict.fromkeys(names, points),
        lr_factors={"base": 1.0, "batch_size=64": 3.0},
    )
    text = flat(text_of(result))
    assert "`lr` was re-tuned for each arm, times 0.3, 1, 3; ×1: base; ×3*: batch_size=64." in text
    assert "* at the edge of what was tried" in text


def test_notes_say_what_the_clock_was() -> None:
    run = make_run(seed=0, time_s=8.0)
    runs = [run, run.model_copy(update={"timing": Timing.ISOLATED, "cotenants": ("a/t0001",)})]
    text = flat(text_of(ablated({"base": runs}, axes={"batch_size": 64})))
    assert "Clock: seconds on a SHARED device" in text
    assert "steps × isolated step time" in text and "(a/t0001)" in text


def test_accuracies_of_the_anytime_mode_come_with_a_warning() -> None:
    anytime = {**FULL_WORKLOAD, "mode": "anytime"}
    assert "stop where they meet" in flat(text_of(ablated({}, axes=AXES, workload=anytime)))
    assert "stop where they meet" not in flat(text_of(ablated({}, axes=AXES)))


def test_names_of_arms_are_never_markup() -> None:
    axes = {"[red]stack": {"[bold]x": {"batch_size": 64}}}
    assert "[bold]x" in text_of(ablated({}, axes=axes))


def test_ablation_without_a_run_has_a_table_of_dashes() -> None:
    text = text_of(ablated({}, axes={"batch_size": 64}))
    assert "0 of 6 runs are done." in text and "batch_size=64" in text


def test_csv_has_a_row_an_arm_and_figures_unrounded() -> None:
    result = factorial()
    rows = list(csv.DictReader(io.StringIO(Table.of_rows(csv_rows(result)).csv())))
    assert [row["arm"] for row in rows] == [arm.name for arm in result.arms]
    assert float(rows[0]["epoch_s_mean"]) == result.arms[0].epoch_s.mean
    mixed = result.arm("precision=bf16")
    assert mixed is not None and mixed.s_mixed is not None
    assert float(rows[2]["s_mixed"]) == mixed.s_mixed.value
    assert rows[2]["settings"] == '{"precision": "bf16"}' and rows[0]["speed_up"] == ""


def test_all_rows_have_the_same_columns_whatever_is_missing() -> None:
    results = (factorial(), three_arms(), ablated({}, axes=AXES))
    columns = {tuple(row) for result in results for row in csv_rows(result)}
    assert len(columns) == 1


def test_effect_rows_have_each_contrast_of_each_response() -> None:
    result = factorial()
    rows = effect_rows(result)
    # 3 alone, 4 together, 3 main effects, 4 interactions.
    assert len(rows) == 3 * 14
    main = next(row for row in rows if (row["kind"], row["effect"]) == ("main", "precision=bf16"))
    effect = result.effect("speed", "main", "precision=bf16")
    assert effect is not None
    assert (main["value"], main["unit"], main["n"]) == (effect.estimate.value, "factor", 5)
