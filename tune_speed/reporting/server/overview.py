"""A store as its pages show it: its studies, and its leaderboards."""

import re
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from tune_speed.core.folders import STUDY_NAME
from tune_speed.core.records import Status
from tune_speed.reporting.leaderboard.queries import Choice, find_boards
from tune_speed.reporting.page.boards import board_table, in_order
from tune_speed.reporting.page.site import render_part
from tune_speed.reporting.page.words import moment, seconds
from tune_speed.reporting.server.channel import Moment, Part
from tune_speed.reporting.server.live_study import study_address, trials_address
from tune_speed.tracking.reader.studies import StudySummary, list_studies

# Rows of each board; its study's page has the rest.
ROWS = 20


def read_store(uri: str) -> Moment:
    """Returns what a store has now. Raises: ServiceError or StorageError."""
    studies = list_studies(uri)
    stamp = sha256(repr(studies).encode()).hexdigest()[:16]
    running = sum(study.is_running for study in studies)
    facts: dict[str, Any] = {
        "state": "running" if running else "ended",
        "stamp": stamp,
        "layout": "overview",
        "trouble": "",
        "texts": {},
    }
    parts = {
        "studies": Part(partial(studies_html, studies)),
        "boards": Part(partial(boards_html, uri), is_heavy=True),
    }
    return Moment(facts=facts, part_of=parts.get, is_live=running > 0)


def studies_html(studies: Sequence[StudySummary]) -> str:
    return render_part("live_parts.html.j2", "studies", list(map(_row, studies)))


def boards_html(uri: str) -> str:
    """Returns the leaderboards. Raises: ServiceError or StorageError."""
    tables = []
    for board in in_order(find_boards(Choice(uri=uri), top=ROWS)):
        links = {
            row.run_id: f"{trials_address(row.study)}{row.run_id}"
            for row in board.rows
            if row.run_id and re.fullmatch(STUDY_NAME, row.study)
        }
        tables.append(board_table(board, links=links, has_studies=True))
    return f"<div class=stack>{render_part('parts.html.j2', 'boards', tables)}</div>"


def _row(study: StudySummary) -> dict[str, Any]:
    # A stranger's experiment may be called anything: one that no address can have has no page.
    is_ours = re.fullmatch(STUDY_NAME, study.name)
    return {
        "name": study.name,
        "address": study_address(study.name) if is_ours else None,
        "is_running": study.is_running,
        "workload": study.workload,
        "device": study.device,
        "trials": sum(study.num_trials.values()),
        "reached": study.num_trials.get(Status.REACHED, 0),
        "best": seconds(study.best_time_s),
        "best_trial": study.best_trial or "",
        "last": moment(study.last_activity),
    }
