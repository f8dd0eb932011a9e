"""Templates, style and script put together into one file that loads nothing.

The script of a live page may ask for more, only where it came from.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib import metadata
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from tune_speed.core import text
from tune_speed.core.records import CLOCK_STATEMENT
from tune_speed.reporting.figures import canvas
from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.leaderboard.tables import PAGE, SEARCH, SHOWN, told
from tune_speed.reporting.leaderboard.text import caption, describe_params, kind_text, title
from tune_speed.reporting.page import words

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
