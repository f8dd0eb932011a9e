from collections.abc import Callable

import pytest
from helpers.making import make_record, make_run
from rich.cells import cell_len
from rich.console import RenderableType

from tune_speed.core.records import Status
from tune_speed.core.words import StopReason
from tune_speed.reporting.leaderboard.ranking import Board, make_boards
from tune_speed.reporting.leaderboard.tables import as_markdown, as_renderable
from tune_speed.reporting.table import as_text


def drawn(renderable: RenderableType, *, width: int) -> list[str]:
    return as_text(renderable, width=width).splitlines()


def certified() -> list[Board]:
    verification = {
        "status": "re-timed",
        "incumbent": "digits_quickstart/t0016",
        "speedup": 1.352,
        "p_value": 0.08,
    }
    runs = tuple(make_run(time_s=10.0 + i / 10, seed=i) for i in range(10))
    record = make_record("t0012", study="digits_quickstart", runs=runs, kind="certified")
    told = record.model_copy(update={"certificate": {"verification": verification}})
    return make_boards([(None, told)])


def estimates() -> list[Board]:
    trials = [make_record(f"t{i:04d}", time_s=1.0 + i // 2, study=f"study-{i}") for i in range(4)]
    return make_boards((None, record) for record in trials)


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("boards", [certified(), estimates()], ids=["certified", "estimates"])
def test_no_line_is_wider_than_the_terminal(boards: list[Board], width: int) -> None:
    assert max(map(cell_len, drawn(as_renderable(boards), width=width))) <= width


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("boards", [certified(), estimates()], ids=["certified", "estimates"])
def test_no_figure_or_name_is_broken_from_80_columns_on(boards: list[Board], width: int) -> None:
    text = "\n".join(drawn(as_renderable(boards), width=width))
    for row in boards[0].rows:
        assert f"{row.study}/{row.trial_id}" in text
        assert f"{row.expected_s:.2f}" in text
    assert "1.35×, p = 0.08" in text or boards[0].kind == "estimate"


def test_control_characters_in_names_never_reach_the_terminal() -> None:
    evil = "\x1b]0;evil\x07\x1b[31m\u202e"
    record = make_record(study=evil, device=evil, params={evil: evil})
    boards = make_boards([(None, record)], where=evil)
    text = "\n".join(drawn(as_renderable(boards), width=200))
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert "]0;evil" in text


def test_misses_say_how_they_ended_in_the_words_of_lists() -> None:
    reasons = {"stopped": "stopped at 2.0 s", "time limit": "max_train_s = 9 s passed"}
    trials = []
    for number, reason in enumerate(reasons.values()):
        run = make_run(Status.CAPPED).model_copy(
            update={"stop_reason": StopReason.model_validate(reason)}
        )
        trials.append((None, make_record(f"t{number:04d}", Status.CAPPED, runs=(run,))))
    (board,) = make_boards(trials, with_misses=True)
    assert {row.ended for row in board.rows} == set(reasons)
    assert all(f"| {words} |" in as_markdown([board]) for words in reasons)


SHARED = [make_record("t0000"), make_record("t0001"), make_record("t0002", time_s=9.0)]
MISSES = [make_record("t0000"), make_record("t0001", Status.OOM)]
SHOWN = {
    "certified": certified(),
    "several studies": estimates(),
    "shared ranks": make_boards((None, record) for record in SHARED),
    "misses": make_boards(((None, record) for record in MISSES), with_misses=True),
}


@pytest.mark.parametrize("name", SHOWN)
def test_boards_take_the_room_that_there_is(
    name: str, kept_text: Callable[[str, str], None]
) -> None:
    for width in (80, 200):
        kept_text("\n".join(drawn(as_renderable(SHOWN[name]), width=width)), str(width))
