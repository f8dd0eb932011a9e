"""Results of other targets than a least accuracy, through all that shows results."""

import html
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.custom.targets import loss_record, own_record, part_of, top5_record
from helpers.tracking.stores import read_by_mlflow, store_of

from tune_speed.api.results import Results
from tune_speed.core.comparability import best_metric, fastest, final_metric
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import RunResult, TrialRecord
from tune_speed.experiments.published.side_by_side import paper_table
from tune_speed.experiments.run_summary import describe_runs, runs_text
from tune_speed.reporting.figures import FIGURES, draw_png, draw_svg
from tune_speed.reporting.figures.facts import ends_of
from tune_speed.reporting.figures.front import pareto
from tune_speed.reporting.leaderboard.history import record_history
from tune_speed.reporting.leaderboard.ranking import Board, make_boards
from tune_speed.reporting.leaderboard.tables import as_csv, as_json, as_markdown
from tune_speed.reporting.leaderboard.text import title
from tune_speed.reporting.page.site import study_page
from tune_speed.reporting.page.trial_table import trial_anchors, trial_table
from tune_speed.reporting.study.reader import read_study
from tune_speed.reporting.trials.comparison import as_dict, compare_records
from tune_speed.reporting.trials.recipe_export import called_with, recipe_yaml
from tune_speed.reporting.trials.text import describe, machine_row, next_steps
from tune_speed.reporting.watch.status import glance
from tune_speed.tracking import Store, schema
from tune_speed.tracking.filter.where import parse_where
from tune_speed.tracking.reader.leaders import find_leaders
from tune_speed.tracking.reader.queries import find_trial
from tune_speed.tracking.writer.descriptions import trial_note
from tune_speed.tuning.simulation.study_table import table_from_records

Maker = Callable[..., TrialRecord]
KINDS: dict[str, tuple[Maker, str, str, float, float]] = {
    "own": (own_record, "rmse", "rmse ≤ 0.3", 0.2, 0.4),
    "loss": (loss_record, "loss", "loss ≤ 0.3", 0.2, 0.4),
    "top5": (top5_record, "top5", "top5_accuracy ≥ 0.9", 0.95, 0.8),
}
"""Maker, its argument for the metric, the target for people, a metric that meets it, one that does
not."""


def study_of(kind: str) -> list[TrialRecord]:
    make, name, _, hit, miss = KINDS[kind]
    times_s = [1.0 + 0.1 * number for number in range(12)]
    return [
        make(f"t{i:04d}", time_s=time_s, **{name: miss if i % 3 == 2 else hit})
        for i, time_s in enumerate(times_s)
    ]


def boards_of(records: list[TrialRecord]) -> list[Board]:
    return make_boards(((None, record) for record in records), with_misses=True)


# --- The target of a record


def test_of_equal_times_the_lower_loss_is_the_better() -> None:
    records = [loss_record(f"t{i:04d}", loss=loss) for i, loss in enumerate([0.25, 0.1, 0.2])]
    best = fastest(records)
    assert best is not None and best.trial_id == "t0001"
    rows = boards_of(records)[0].rows
    assert [row.trial_id for row in rows] == ["t0001", "t0002", "t0000"]
    assert [row.final_metric for row in rows] == [0.1, 0.2, 0.25]


def test_best_metric_is_the_least_loss_and_the_greatest_share() -> None:
    assert best_metric(loss_record(loss=0.2)) == 0.2  # After 0.4.
    assert best_metric(top5_record(top5=0.95)) == 0.95  # After 0.5.
    assert best_metric(own_record(rmse=0.2)) == 0.2


def test_a_metric_that_was_not_measured_is_none_and_the_last_of_equals() -> None:
    lost = loss_record("t0000", loss=None)
    assert final_metric(lost) is None and best_metric(lost) is None
    tied = [lost.model_copy(update={"runs": loss_record().runs}), loss_record("t0001", loss=0.3)]
    unknown = tied[0].model_copy(update={"runs": (_without_metric(tied[0].runs[0]),)})
    best = fastest([unknown, tied[1]])
    assert best is not None and best.trial_id == "t0001"


def _without_metric(run: RunResult) -> RunResult:
    bare = tuple(e.model_copy(update={"loss": None}) for e in run.evaluations)
    return run.model_copy(update={"evaluations": bare})


# --- Words


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_on_the_target_has_its_sign(kind: str) -> None:
    goal, records = KINDS[kind][2], study_of(kind)
    boards = boards_of(records)
    texts = [
        title(boards[0]),
        as_markdown(boards),
        runs_text(records[0]),
        trial_note(records[0], run_id="r"),
    ]
    plain = [html.unescape(text).replace("\\_", "_") for text in texts]
    assert [text for text in plain if goal not in text] == []


@pytest.mark.parametrize("kind", KINDS)
def test_boards_as_json_and_csv_say_which_way_is_better(kind: str) -> None:
    boards = boards_of(study_of(kind))
    mode = "max" if kind == "top5" else "min"
    assert json.loads(as_json(boards))[0]["target_mode"] == mode
    head, first, *_ = as_csv(boards).splitlines()
    assert first.split(",")[head.split(",").index("target_mode")] == mode


def test_margin_is_positive_where_the_target_holds() -> None:
    assert describe_runs(loss_record(loss=0.2)).margin == pytest.approx(0.1)
    assert describe_runs(top5_record(top5=0.95)).margin == pytest.approx(0.05)
    assert describe_runs(own_record(rmse=0.4)).margin == pytest.approx(-0.1)
    assert "+0.1000 below the target" in runs_text(loss_record(loss=0.2))


def test_a_trial_in_words_shows_the_metrics_that_it_has() -> None:
    text = describe(own_record(), run_id="r")
    assert "rmse" in text and "macro_f1" not in text
    assert "macro_f1" in describe(top5_record(), run_id="r")


def test_next_steps_name_the_nearest_and_no_shell_command_for_a_function() -> None:
    records = tuple(own_record(f"t{i:04d}", rmse=rmse) for i, rmse in enumerate([0.9, 0.4, 0.6]))
    text = next_steps(
        records,
        tuple(make_boards([(None, r) for r in records])),
        study="own",
        folder="f",
        uri="sqlite:///m.db",
    )
    assert "nearest was t0001" in text
    hits = (own_record(),)
    won = next_steps(hits, tuple(boards_of(list(hits))), study="own", folder="f", uri="u")
    assert "--export" not in won and "tune-speed train" not in won


def test_exporting_a_training_function_is_refused_with_what_to_call() -> None:
    with pytest.raises(ConfigError, match="training function") as error:
        recipe_yaml(own_record(), run_id=None)
    assert "tune_speed.certify('own', train=" in str(error.value)
    assert "tune_speed.search(train=" in str(error.value)
    assert called_with(own_record()).splitlines()[1:] == ["lr: 0.1", "net: {depth: 4}"]


@pytest.mark.parametrize("kind", ["loss", "top5"])
def test_a_recipe_with_another_target_is_exported(kind: str) -> None:
    assert KINDS[kind][2] in recipe_yaml(study_of(kind)[0], run_id=None)


# --- Questions and comparisons


def test_settings_of_a_function_have_the_names_that_it_knows() -> None:
    assert parse_where("lr=0.1 and net.depth=4 and final_metric<0.3").matches(own_record())
    assert not parse_where("final_metric>0.3").matches(own_record(rmse=0.2))
    compared = compare_records([("a" * 32, own_record()), ("b" * 32, own_record("t0001", lr=0.2))])
    assert [line.name for line in compared.lines if line.section == "recipe"] == ["lr"]
    assert as_dict(compared)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_history_and_papers_take_records_without_recipes(kind: str) -> None:
    records = study_of(kind)
    assert record_history(records)[0].target_mode == ("max" if kind == "top5" else "min")
    assert machine_row(_tracked(records[0]))["final_metric"] == KINDS[kind][3]
    assert len(paper_table(records)["notes"]) >= (1 if kind == "own" else 0)


def _tracked(record: TrialRecord) -> Any:
    return ("r" * 32, record)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_to_replay_holds_scores_of_which_more_is_better(kind: str) -> None:
    records = study_of(kind)
    params = [{"lr": 0.1 * 10 ** (i % 3)} for i in range(len(records))]
    records = [r.model_copy(update={"params": p}) for r, p in zip(records, params, strict=True)]
    table = table_from_records(records, space=None, command="c")
    finals = [row["metric"][-1] >= table.metadata["target"] for row in table.rows]
    assert finals == [record.time_to_target_s is not None for record in records]


# --- Figures and pages


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_draws(kind: str, name: str, tmp_path: Path) -> None:
    records = study_of(kind)
    params = [{"lr": 0.1 + 0.05 * i, "batch": 32 * (1 + i % 2)} for i in range(len(records))]
    records = [r.model_copy(update={"params": p}) for r, p in zip(records, params, strict=True)]
    runs = tuple(r.runs[0].model_copy(update={"seed": i}) for i, r in enumerate(records[:3]))
    again = records[0].model_copy(update={"kind": "certified", "runs": runs})
    part = part_of(records, [again])
    drawn = draw_svg(name, part, id_prefix="x")
    # A step's time needs the micro-batch, of which functions tell nothing; cost, several devices.
    assert (drawn is None) == (name in ("step_time", "cost"))
    assert drawn is None or "nan" not in drawn.svg.lower().replace("provenance", "")
    draw_png(name, part, tmp_path / "f.png")


def test_front_of_losses_falls() -> None:
    losses = [0.9, 0.5, 0.6, 0.2, 0.4]
    records = [loss_record(f"t{i:04d}", loss=v, time_s=1.0 + i) for i, v in enumerate(losses)]
    part = part_of(records)
    front = pareto(ends_of(part), part.target)
    assert [end.metric for end in front] == [0.9, 0.5, 0.2]
    drawn = draw_svg("front", part, id_prefix="x")
    assert drawn is not None and "The lowest loss, 0.2" in drawn.svg


def test_curves_of_misses_begin_with_the_nearest() -> None:
    records = [own_record(f"t{i:04d}", rmse=v) for i, v in enumerate([0.9, 0.4, 0.6])]
    drawn = draw_svg("curves", part_of(records), id_prefix="x")
    assert drawn is not None and "t0001 came nearest, with 0.4" in drawn.svg


@pytest.mark.parametrize("kind", KINDS)
def test_trials_that_missed_stand_by_how_near_they_came(kind: str) -> None:
    make, name, _, hit, miss = KINDS[kind]
    metrics = [miss + (miss - hit), hit, miss]
    records = [make(f"t{i:04d}", **{name: metric}) for i, metric in enumerate(metrics)]
    part = part_of(records)
    table = trial_table(part, anchors=trial_anchors([part]))
    assert [row.trial.record.trial_id for row in table.rows] == ["t0001", "t0002", "t0000"]
    again = [dict(row.facts).get("Again") for row in table.rows]
    assert all(text is None for text in again) == (kind == "own")


# --- Through MLflow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = [record for kind in KINDS for record in study_of(kind)]
    return store_of(records, folder=tmp_path_factory.mktemp("targets"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_comes_back_from_mlflow_whole(store: str, kind: str) -> None:
    found = find_trial(Store(store), f"{kind}/t0003")
    assert found.has_curve
    assert found.record == study_of(kind)[3]
    bare = read_study(Store(store), kind).trials[0].record
    assert final_metric(bare) == KINDS[kind][3]


@pytest.mark.parametrize("kind", KINDS)
def test_frames_hold_the_metric(store: str, kind: str) -> None:
    results, (_, _, _, hit, _) = Results(store), KINDS[kind]
    best = results.best(study=kind)
    assert set(best["final_metric"]) == {hit}
    assert set(best["target_mode"]) == {"max" if kind == "top5" else "min"}
    curves = results.curves(f"{kind}/t0000")
    column = {"own": "values.rmse", "loss": "loss", "top5": "values.top5_accuracy"}[kind]
    assert curves[column].iloc[-1] == hit
    trials = results.trials(kind, where="status=reached")
    assert len(trials) == 8
    if kind == "own":
        assert "params.lr" in best and set(results.trials(kind, where="lr=0.1")["study"]) == {"own"}


@pytest.mark.parametrize("kind", KINDS)
def test_page_and_glance_are_made(store: str, kind: str) -> None:
    view = read_study(Store(store), kind)

    def recipe(trial: Any) -> str:
        return called_with(trial.record) if kind == "own" else recipe_yaml(trial.record, run_id="r")

    page = study_page(view, recipe_yaml=recipe)
    goal = KINDS[kind][2]
    assert goal in page
    assert ("tune-speed train" in page) == (kind != "own")
    assert glance(view).target == goal


def test_mlflow_has_the_metric_over_steps_and_at_the_end() -> None:
    points = schema.record_points(own_record(rmse=0.2), start_ms=0)
    assert [(p.step, p.value) for p in points if p.key == "rmse"] == [(0, 2.0), (5, 0.4), (10, 0.2)]
    ends = {p.key: p.value for p in points if p.step == 10}
    assert ends["final_rmse"] == ends["final_metric"] == 0.2
    assert not {"accuracy", "final_accuracy", "macro_f1"} & {p.key for p in points}
    losses = {p.key: p.value for p in schema.record_points(loss_record(), start_ms=0)}
    assert losses["val_loss"] == losses["final_loss"] == 0.25
    assert all(math.isfinite(p.value) for p in points)


def test_a_metric_with_a_name_that_is_taken_stands_beside_it() -> None:
    assert schema.metric_key("wall_s") == "own.wall_s"
    assert schema.metric_key("val_loss") == "own.val_loss"
    assert schema.metric_key("accuracy") == "accuracy"
    assert schema.metric_key("my loss/1") == "my loss_1"


def test_gap_is_what_is_left_to_the_target_on_either_side() -> None:
    for record, left in (
        (loss_record(loss=0.4), 0.1),
        (loss_record(loss=0.2), 0.0),
        (top5_record(top5=0.7), 0.2),
        (own_record(rmse=0.5), 0.2),
    ):
        assert schema.gap(record, record.runs[0]) == pytest.approx(left)
    lost = loss_record(loss=None)
    assert schema.gap(lost, lost.runs[0]) is None


@pytest.mark.parametrize("through_mlflow", [False, True])
def test_of_many_equal_times_the_store_finds_the_lowest_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through_mlflow: bool
) -> None:
    losses = [0.1 + 0.01 * ((7 * i) % 15) for i in range(15)]
    records = [loss_record(f"t{i:04d}", loss=loss) for i, loss in enumerate(losses)]
    uri = store_of(records, folder=tmp_path)
    if through_mlflow:
        read_by_mlflow(monkeypatch, tmp_path)
    found = find_leaders(Store(uri), top=2).trials
    seen = sorted(final_metric(trial.record) or 1.0 for trial in found)
    assert seen[:2] == pytest.approx([0.1, 0.11])
