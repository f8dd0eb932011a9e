from types import SimpleNamespace
from typing import Any

from helpers.making import make_record

from tune_speed.core.comparability import board_key
from tune_speed.core.records import Recommended
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.search import _boards_of

SPACE = SearchSpace.from_tree({"optimizer": {"sgd": {"lr": {"low": 0.01, "high": 1.0}}}})


def boards_of(*rates: float) -> tuple[Any, tuple[str, ...]]:
    params = [{"optimizer.sgd.lr": rate} for rate in rates]
    records = [make_record(f"t{i:04}", params=p, time_s=1.0 + i) for i, p in enumerate(params)]
    ledger: Any = SimpleNamespace(records={each.trial_id: each for each in records})
    study: Any = SimpleNamespace(name="study", space=SPACE)
    best = Recommended(study="study", trial_id="t0001", runs=1, hits=1, expected_s=2.0)
    boards, said = _boards_of(ledger, study, (best,))
    assert [board.key for board in boards] == [board_key(records[0])]
    return boards[0], said


def test_boards_have_the_ranges_at_whose_ends_the_best_lie_and_what_is_recommended() -> None:
    board, said = boards_of(1.0, 0.999, 0.995, 0.5)
    line = "optimizer.sgd.lr, 3 of the best 4 at 1: better ones may lie above that"
    assert said == (line,) and board.range_ends == {"study": (line,)}
    assert board.recommended is not None and board.recommended.trial_id == "t0001"


def test_boards_name_no_range_where_the_best_lie_within() -> None:
    board, said = boards_of(0.5, 0.4, 0.3)
    assert said == () and board.range_ends == {}
