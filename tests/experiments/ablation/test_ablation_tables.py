import csv
import io
import math
from collections.abc import Callable

import pytest
from helpers.experiments.ablations import FULL_WORKLOAD, ablated, make_run, planted
from helpers.texts import Texts
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
    return "\n".join(map(str.rstrip, out.getvalue().splitlines()))


def factorial(*, synergy: float = 0.0) -> AblationResult:
    runs = planted(AXES, design="factorial", ln_speeds=LN_SPEEDS, synergy=synergy)
    return ablated(runs, axes=AXES, design="factorial", seeds=5)


def three_arms() -> AblationResult:
    axes = {"loader.pin_memory": True, "precision": "bf16"}
    runs = planted(axes, design="one-at-a-time", ln_speeds=LN_SPEEDS, seeds=3)
    del runs[PINNED]
    return ablated(runs, axes=axes, not_applicable={PINNED: "it needs CUDA"})


def of_64(*, status: Status = Status.REACHED, time_s: float = 5.0) -> AblationResult:
    own = [make_run(seed=s, time_s=time_s, accuracy=0.5, status=status) for s in (0, 1)]
    runs = {"base": [make_run(seed=s, time_s=9.0) for s in (0, 1)], "batch_size=64": own}
    return ablated(runs, axes={"batch_size": 64}, seeds=2)


def of_design(design: Design) -> AblationResult:
    return ablated(planted(AXES, design=design, ln_speeds=LN_SPEEDS), axes=AXES, design=design)


def retuned() -> AblationResult:
    points = [TuningPoint(factor=f, metric=0.9, status=Status.REACHED) for f in (0.3, 1.0, 3.0)]
    factors = {"base": 1.0, "batch_size=64": 3.0}
    tuning = dict.fromkeys(factors, points)
    return ablated({}, axes={"batch_size": 64}, retune="lr", tuning=tuning, lr_factors=factors)


def of_two_clocks() -> AblationResult:
    run = make_run(seed=0, time_s=8.0)
    runs = [run, run.model_copy(update={"timing": Timing.ISOLATED, "cotenants": ("a/t0001",)})]
    return ablated({"base": runs}, axes={"batch_size": 64})


SHOWN: dict[str, Callable[[], AblationResult]] = {
    "factorial": factorial,
    "helping one another": lambda: factorial(synergy=0.5),
    "overlapping": lambda: factorial(synergy=-0.5),
    "leaving one out": lambda: of_design("leave-one-out"),
    "cumulative": lambda: of_design("cumulative"),
    "not applicable": three_arms,
    "missed": lambda: of_64(status=Status.MISSED),
    "diverged": lambda: of_64(status=Status.DIVERGED),
    "retuned": retuned,
    "two clocks": of_two_clocks,
    "anytime": lambda: ablated({}, axes=AXES, workload={**FULL_WORKLOAD, "mode": "anytime"}),
    "markup": lambda: ablated({}, axes={"[red]stack": {"[bold]x": {"batch_size": 64}}}),
}


@pytest.mark.parametrize("name", SHOWN)
def test_tables_and_notes_are_those_kept(name: str, kept_text: Texts) -> None:
    kept_text(text_of(SHOWN[name]()))


def test_tables_fit_a_narrow_terminal_and_names_fold_but_no_figures(kept_text: Texts) -> None:
    text = text_of(factorial(), width=80)
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    kept_text(text)


def test_cells_are_the_results_figures() -> None:
    """Twice as fast with either seed, so without an interval; 0.94 less 0.95."""
    runs = {
        "base": [make_run(seed=s, time_s=t) for s, t in ((0, 8.0), (1, 12.0))],
        "batch_size=64": [
            make_run(seed=s, time_s=t, accuracy=0.94) for s, t in ((0, 4.0), (1, 6.0))
        ],
    }
    lines = text_of(ablated(runs, axes={"batch_size": 64}, seeds=2)).splitlines()
    arm, effect = (line.split() for line in lines if line.startswith("batch_size=64"))
    assert arm == ["batch_size=64", "5.000", "2.00", "5.000", "2.00", "1.00", "0.9400"]
    assert effect == ["batch_size=64", "2.00", "–", "0.5", "-0.0100", "–", "0.5", "2"]


def test_a_miss_is_infinite() -> None:
    arm = of_64(status=Status.MISSED).arms[1]
    assert arm.ends("expected_s")[0] == arm.ends("time_to_target_s")[0] == math.inf
    assert arm.ends("time_to_target_factor")[0] == 0.0 and arm.ends("speed_up")[0] == pytest.approx(
        1.8
    )


def test_csv_has_a_row_an_arm_and_figures_unrounded() -> None:
    result = factorial()
    rows = list(csv.DictReader(io.StringIO(Table.of_rows(csv_rows(result)).csv())))
    assert [row["arm"] for row in rows] == [arm.name for arm in result.arms]
    assert float(rows[0]["epoch_s_mean"]) == result.arms[0].epoch_s.mean
    mixed = result.arm("precision=bf16")
    assert mixed is not None and mixed.speed_up is not None
    assert float(rows[2]["speed_up"]) == mixed.speed_up.value
    assert rows[2]["settings"] == '{"precision": "bf16"}' and rows[0]["speed_up"] == ""


def test_all_rows_have_the_same_columns_whatever_is_missing() -> None:
    results = (factorial(), three_arms(), ablated({}, axes=AXES))
    columns = {tuple(row) for result in results for row in csv_rows(result)}
    assert len(columns) == 1


def test_effect_rows_have_each_contrast_of_each_response() -> None:
    result = factorial()
    rows = effect_rows(result)
    # 3 main effects, 4 interactions.
    assert len(rows) == 3 * 7
    main = next(row for row in rows if (row["kind"], row["effect"]) == ("main", "precision=bf16"))
    effect = result.effect("speed", "main", "precision=bf16")
    assert effect is not None
    assert (main["value"], main["unit"], main["n"]) == (effect.estimate.value, "factor", 5)
