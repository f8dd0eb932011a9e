"""`tune-speed report`: a study as one page, made for looking."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tune_speed.core.comparability import totals_of
from tune_speed.core.records import counts_of_ends
from tune_speed.reporting.figures import FIGURES, draw_svg
from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.page.answer import Answer, answer_of
from tune_speed.reporting.page.site import board_table, render
from tune_speed.reporting.page.trial_table import trial_anchors, trial_table
from tune_speed.reporting.page.words import file_stem
from tune_speed.reporting.study.view import StudyPart, StudyView, ViewedTrial, endings_of

# Of the board of estimates; the table of all trials has the rest.
ROWS = 10
# Beside one another below the answer: what a first look needs.
FIRST_FIGURES = 2

RecipeYaml = Callable[[ViewedTrial], str]
"""Returns a trial's recipe as a file for `tune-speed train`."""


def study_page(view: StudyView, *, recipe_yaml: RecipeYaml) -> str:
    """Returns `view` as one HTML page that needs no network; `recipe_yaml` gives its recipes."""
    parts = view.parts
    anchors = trial_anchors(parts)
    sections = [
        {
            **section_of(view, part, anchors=anchors, number=number),
            **_figures(part, anchors=anchors, number=number),
            "table": trial_table(part, anchors=anchors),
        }
        for number, part in enumerate(parts, start=1)
    ]
    for section in sections:
        section["recipe"] = recipe_of(section, recipe_yaml)
    again = f"tune-speed report {shlex.quote(view.study)} --html report.html"
    context = {"view": view, "sections": sections, "anchors": anchors, "again": again}
    return render("study.html.j2", context)


def section_of(
    view: StudyView, part: StudyPart, *, anchors: Mapping[str, str], number: int
) -> dict[str, Any]:
    """Returns what templates read of a part but what takes long: recipe, figures, table."""
    boards = [board for board in view.boards if board.key._replace(kind="") == part.key]
    answer = answer_of(part, boards)
    winner = answer.winner
    records = [trial.record for trial in (*part.trials, *part.certified)]
    return {
        "id": f"part-{number}",
        "key": part.key,
        "target": part.target.words,
        "did_meet": part.target.did_meet.capitalize(),
        "answer": answer,
        "figure_names": list(FIGURES),
        "range_ends": [line for b in boards for ends in b.range_ends.values() for line in ends],
        "num_trials": len(part.trials),
        "totals": totals_of(records),
        "counts": counts_of_ends(trial.record for trial in part.trials),
        "commands": () if winner is None else _commands(view, answer, winner),
        "environment": (records[-1] if winner is None else winner.record).environment,
        "certified": _table(boards, "certified", anchors),
        "estimates": _table(boards, "estimate", anchors),
        "all_trials": f"tune-speed leaderboard --study {shlex.quote(view.study)} --misses"
        f" --top {len(part.trials)} --format csv",
        "endings": [e for e in endings_of(part) if e.status != "reached"],
    }


def recipe_of(section: Mapping[str, Any], recipe_yaml: RecipeYaml) -> str | None:
    winner = section["answer"].winner
    return None if winner is None else recipe_yaml(winner)


def _figures(part: StudyPart, *, anchors: Mapping[str, str], number: int) -> dict[str, Any]:
    drawn = [
        draw_svg(name, part, id_prefix=f"p{number}-{name}", anchors=anchors) for name in FIGURES
    ]
    figures = [figure for figure in drawn if figure is not None]
    first = [figure.name for figure in figures if not figure.is_wide][:FIRST_FIGURES]
    return {
        "first_figures": [figure for figure in figures if figure.name in first],
        "figures": [figure for figure in figures if figure.name not in first],
    }


def _table(boards: Sequence[Board], kind: str, anchors: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns the board of one kind: all certified rows, but only the fastest estimates."""
    board = next((board for board in boards if board.kind == kind), None)
    if board is None:
        return None
    ranked = tuple(row for row in board.rows if row.rank is not None)
    shown = board.rows if kind == "certified" else ranked[:ROWS]
    links = {run_id: f"#{anchor}" for run_id, anchor in anchors.items()}
    return board_table(board.model_copy(update={"rows": shown}), links=links)


def _commands(view: StudyView, answer: Answer, winner: ViewedTrial) -> tuple[tuple[str, str], ...]:
    study, what = shlex.quote(view.study), "the nearest" if answer.verdict == "missed" else "it"
    if winner.record.is_own_loop:
        return _own_commands(answer, winner) if len(view.parts) == 1 else ()
    by_id = (f"Train {what} again, straight from MLflow", f"tune-speed train {winner.run_id}")
    # With several parts `best --export` refuses to choose: only the run id is unambiguous.
    if answer.verdict == "missed" or len(view.parts) > 1:
        return (by_id,)
    again = f"tune-speed certify {study}{' --again' * (answer.verdict == 'disturbed')}"
    be_sure = ("Be sure: run the fastest again with fresh seeds", again)
    # Not STUDY.yaml, as which the study itself is at hand.
    name = f"{file_stem(view.study)}_best.yaml"
    export = f"tune-speed best --study {study} --export {name} && tune-speed train {name}"
    train = (("Write the recipe to a file and train it", export), by_id)
    return train if answer.verdict == "certified" else (*train, be_sure)


def _own_commands(answer: Answer, winner: ViewedTrial) -> tuple[tuple[str, str], ...]:
    # Records name a training function, not the file that it is in.
    if answer.verdict not in ("estimate", "disturbed"):
        return ()
    study, function = winner.record.study, winner.record.workload.get("function", "FUNCTION")
    command = shlex.join(["tune-speed", "certify", study, "--train", f"FILE.py:{function}"])
    return (("Be sure: run the fastest again with fresh seeds", command),)
