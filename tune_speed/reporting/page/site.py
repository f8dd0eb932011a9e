"""`tune-speed report`: a study as one page, made for looking, in one file that loads nothing."""

import shlex
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib import metadata
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from tune_speed.core import text
from tune_speed.core.comparability import totals_of
from tune_speed.core.records import CLOCK_STATEMENT, counts_of_ends
from tune_speed.reporting.figures import FIGURES, canvas, draw_svg
from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.leaderboard.tables import PAGE, SEARCH, SHOWN, told
from tune_speed.reporting.leaderboard.text import caption, describe_params, kind_text, title
from tune_speed.reporting.page import words
from tune_speed.reporting.page.answer import Answer, answer_of
from tune_speed.reporting.page.trial_table import trial_anchors, trial_table
from tune_speed.reporting.page.words import file_stem
from tune_speed.reporting.study.view import StudyPart, StudyView, ViewedTrial, endings_of

_COLOURS = {
    "page": ("#f5f6f8", "#0e1115"),
    "line": ("#d8dde3", "#303841"),
    "accent": ("#0a58a8", "#79b8ff"),
    "good": ("#1a7032", "#6cd58a"),
    "warn": ("#8a5a00", "#e5b95c"),
    "bad": ("#b3261e", "#ff9b92"),
    "mark": ("#fff3c4", "#3a3413"),
}
"""Colours of the page besides those of the figures, in light and in dark."""
LIGHT = {name: light for name, (light, _) in _COLOURS.items()}
DARK = {name: dark for name, (_, dark) in _COLOURS.items()}
SCRIPTS = ("where.js", "page.js", "parallel.js")
LIVE_SCRIPTS = (*SCRIPTS, "live.js")


def render(template: str, context: Mapping[str, Any], *, is_live: bool = False) -> str:
    """Returns a page in which all names are escaped; `is_live`: a server shows it."""
    style, script = _style(), _script(LIVE_SCRIPTS if is_live else SCRIPTS)
    # The content security policy: one script may run, and nothing may be fetched.
    digest = b64encode(sha256(script.encode()).digest()).decode()
    asking = " connect-src 'self';" if is_live else ""
    shared = {
        "style": Markup(style),
        "script": Markup(script),
        # Inline styles must be allowed: a hash does not cover the `style` attributes of figures.
        "policy": (
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline';{asking}"
            " img-src data:; base-uri 'none'; form-action 'none'"
        ),
        "version": metadata.version("tune_speed"),
        "clock": CLOCK_STATEMENT,
    }
    return _environment().get_template(template).render({**context, **shared})


def render_part(template: str, name: str, *facts: Any) -> str:
    """Returns what the macro `name` of `template` makes of `facts`: a part of a page."""
    return str(getattr(_environment().get_template(template).module, name)(*facts)).strip()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_text),
        # Jinja escapes nothing by default, and names on a page are anybody's.
        autoescape=True,
        # Otherwise a misspelt name in a template would be an empty text.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "seconds": words.seconds,
        "number": text.compact,
        "moment": words.moment,
        "plural": text.counted,
        "web_address": words.web_address,
        "told_tags": words.told_tags,
        "describe_params": describe_params,
        "device_text": text.device_text,
    }
    return environment


def _text(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _script(names: Sequence[str]) -> str:
    script = "".join(map(_text, names))
    assert "</" not in script, "would end its element"
    return script


@cache
def _style() -> str:
    light = _block("light", {**canvas.LIGHT, **LIGHT})
    dark = _block("dark", {**canvas.DARK, **DARK})
    is_dark = "screen and (prefers-color-scheme: dark)"
    # What is printed is light, whatever the screen shows.
    style = f""":root {{{light}}}
@media {is_dark} {{:root:not([data-theme=light]) {{{dark}}}}}
@media screen {{:root[data-theme=dark] {{{dark}}}}}
{_text("style.css")}"""
    assert "</" not in style, "would end its element"
    return style


def _block(scheme: str, colours: Mapping[str, str]) -> str:
    colours_css = " ".join(f"--{name}: {value};" for name, value in colours.items())
    return f"color-scheme: {scheme}; {colours_css}"


def board_table(
    board: Board, *, links: Mapping[str, str], has_studies: bool = False
) -> dict[str, Any]:
    """Returns `board` as templates read it; `has_studies`: its `links`, by run id, name them."""
    is_one_study = len({row.study for row in board.rows}) < 2
    names = [n for n in told(board, PAGE[board.kind]) if not (is_one_study and n == SEARCH)]
    return {
        "board": board,
        "name": kind_text(board).capitalize(),
        "title": title(board),
        "caption": caption(board),
        "columns": {name: SHOWN[name] for name in names},
        "links": links,
        "has_studies": has_studies,
    }


def in_order(boards: Iterable[Board]) -> list[Board]:
    # Certified rows are known better than estimates of the same workload and device.
    return sorted(
        boards, key=lambda b: (b.workload, b.workload_hash, b.protocol_version, b.device, b.kind)
    )


def boards_page(boards: Sequence[Board]) -> str:
    tables = [board_table(board, links={}) for board in in_order(boards)]
    read_at = datetime.now(UTC).isoformat(timespec="seconds")
    return render("boards.html.j2", {"tables": tables, "read_at": read_at})


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
