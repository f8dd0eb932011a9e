"""A search for several targets has a leaderboard for each."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Done
from making import make_record

from tune_speed.api.results import Results
from tune_speed.core.records import LowerTarget, Recommended, Status, TrialRecord
from tune_speed.reporting.leaderboard.queries import Choice, find_boards, find_history
from tune_speed.reporting.page.study_page import study_page
from tune_speed.reporting.server.live_study import LiveStudy
from tune_speed.reporting.study.reader import read_study
from tune_speed.tracking import Tracker, open_store
from tune_speed.tracking.reader import leaders

LOWER = LowerTarget(value=0.9, workload_name="digits-accuracy-0.9", workload_hash="l" * 16)


def record_of(number: int, *, met_s: float | None, lower_s: float | None) -> TrialRecord:
    """Returns a trial that met accuracy 0.95, and 0.9, after so long."""
    status = Status.MISSED if met_s is None else Status.REACHED
    record = make_record(f"t{number:04}", status, time_s=met_s or 5.0, params={"lr": number})
    crossings = () if lower_s is None else ((0.9, lower_s),)
    final = record.runs[0].evaluations[0]
    final = final.model_copy(update={"accuracy": 0.93 if met_s is None else 0.96})
    run = record.runs[0].model_copy(update={"crossings": crossings, "evaluations": (final,)})
    target = {"metric": "accuracy", "value": 0.95, "values": [0.9, 0.95]}
    workload = {**record.workload, "target": target}
    changes = {"workload": workload, "runs": (run,), "lower_targets": (LOWER,)}
    changes |= {"finished_at": f"2026-01-01T00:{number:02d}:00.000+00:00"}
    return record.model_copy(update=changes)


def recommended(trial_id: str, expected_s: float) -> Recommended:
    return Recommended(study="study", trial_id=trial_id, runs=1, hits=1, expected_s=expected_s)


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with a search for two targets, in which other trials are the best at each."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    tracker = Tracker(open_store(uri), study="study", study_tags={}, search_id="s", linger_s=0.02)
    tracker.trial_finished(record=record_of(0, met_s=3.0, lower_s=2.5))
    tracker.trial_finished(record=record_of(1, met_s=None, lower_s=1.0))
    tracker.trial_finished(record=record_of(2, met_s=None, lower_s=None))
    best = recommended("t0000", 3.0), recommended("t0001", 1.0)
    tracker.recommend(best[:1], (best[1], recommended("t0000", 2.5)))
    assert tracker.close(timeout_s=30) == ()
    return uri


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("with_misses", [True, False])
def test_each_target_has_its_board(
    uri: str, is_direct: bool, with_misses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the store's tables are read, or MLflow is asked."""
    if not is_direct:
        monkeypatch.setattr(leaders, "read_directly", lambda uri, read: None)
    top, lower = find_boards(Choice(uri=uri), top=5, with_misses=with_misses)
    assert [top.target, lower.target] == [0.95, 0.9]
    assert [r.trial_id for r in top.rows if r.rank] == ["t0000"]
    assert [r.trial_id for r in lower.rows if r.rank] == ["t0001", "t0000"]
    assert [(b.trials, b.reached) for b in (top, lower)] == [(3, 1), (3, 2)]
    assert lower.recommended is not None and lower.recommended.trial_id == "t0001"
    assert top.recommended is not None and top.recommended.trial_id == "t0000"


def test_a_board_is_chosen_by_its_target_or_its_workload(uri: str) -> None:
    (board,) = find_boards(Choice(uri=uri, target=0.9), top=1)
    assert [row.trial_id for row in board.rows] == ["t0001"]
    assert find_boards(Choice(uri=uri, workload="digits-accuracy-0.9"), top=1) == [board]
    (top,) = find_boards(Choice(uri=uri, workload="digits"), top=1)
    assert top.target == 0.95


@pytest.mark.parametrize("is_direct", [True, False])
def test_each_target_has_its_records(
    uri: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 0.95, t0000 after 3 s; at 0.9, t0000 after 2.5 s, then t0001 after 1 s, which missed."""
    if not is_direct:
        monkeypatch.setattr(leaders, "read_directly", lambda uri, read: None)
    held = find_history(Choice(uri=uri), top=5)
    found = [(each.target, each.trial_id, each.expected_s) for each in held]
    assert found == [(0.95, "t0000", 3.0), (0.9, "t0000", 2.5), (0.9, "t0001", 1.0)]
    of_lower = find_history(Choice(uri=uri, target=0.9), top=1)
    assert [each.trial_id for each in of_lower] == ["t0001"]
    assert find_history(Choice(uri=uri, workload="digits-accuracy-0.9"), top=1) == of_lower
    assert [each.target for each in find_history(Choice(uri=uri, workload="digits"), top=1)] == [
        0.95
    ]


def test_commands_and_python_show_the_same(
    uri: str, tmp_path: Path, call: Callable[..., Done]
) -> None:
    done = call("leaderboard", "--json", "--target", "0.9", folder=tmp_path)
    (board,) = json.loads(done.out)
    assert [row["trial_id"] for row in board["rows"]] == ["t0001", "t0000"]
    done = call("best", "--target", "0.95", "--json", folder=tmp_path)
    assert [row["trial_id"] for row in json.loads(done.out)[0]["rows"]] == ["t0000"]
    assert list(Results(uri).best(target=0.9)["trial_id"]) == ["t0001", "t0000"]


def test_the_study_is_one_part_for_each_target(uri: str) -> None:
    view = read_study(uri, "study")
    assert [part.target.value for part in view.parts] == [0.95, 0.9]
    found = [part.leader.record.trial_id for part in view.parts if part.leader]
    assert found == ["t0000", "t0001"]
    assert len(view.trials) == 3
    assert [board.target for board in view.boards] == [0.95, 0.9]


def test_page_and_live_page_have_the_front_first_and_each_trial_once(uri: str) -> None:
    view = read_study(uri, "study")
    top, lower = view.parts
    assert [(value, row.trial_id) for value, row in top.front] == [(0.9, "t0001"), (0.95, "t0000")]
    assert lower.front == () and lower.is_lower and not top.is_lower
    page = study_page(view, recipe_yaml=lambda trial: "")
    part = LiveStudy(uri, "study", recipe_yaml=lambda trial: "").read().part_of("layout")
    assert part is not None
    live = part.make()
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    assert page.index("Training time and result") < page.index("Best so far")
    first, second = (live.index(f"part-1-figure-{name}") for name in ("front", "best_so_far"))
    assert first < second
    # A lower target's own part has the order of one target.
    assert live.index("part-2-figure-best_so_far") < live.index("part-2-figure-front")
    assert "This study had several targets" in page and "cannot be compared" not in page
