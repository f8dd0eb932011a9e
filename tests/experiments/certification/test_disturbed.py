from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.command import Done
from helpers.reporting.pages import certified, page_of, trained, viewed
from helpers.tracking.stores import store_of

from tune_speed.api.certified import Certified, certification_text, luck
from tune_speed.core.records import NOT_CERTIFIED, Timing, TrialRecord, ended_as
from tune_speed.core.stats import ranked_s
from tune_speed.core.words import read_notes
from tune_speed.experiments.certification.certify import CertifyResult, find_leader
from tune_speed.experiments.certification.schedule import CertificationSchedule
from tune_speed.reporting.leaderboard.history import record_history
from tune_speed.reporting.leaderboard.ranking import Board, make_boards
from tune_speed.reporting.leaderboard.tables import as_csv, as_markdown
from tune_speed.reporting.leaderboard.text import caption, title
from tune_speed.reporting.page.answer import Answer, answer_of
from tune_speed.reporting.page.site import boards_page
from tune_speed.reporting.trials.recipe_export import recipe_yaml
from tune_speed.reporting.trials.text import describe
from tune_speed.reporting.watch.status import as_dict as status_dict
from tune_speed.reporting.watch.status import glance
from tune_speed.runtime.process import busy_text
from tune_speed.study.settings import CertifyConfig
from tune_speed.tracking import Query, Store
from tune_speed.tracking.reader.queries import find_trial, find_trials
from tune_speed.tracking.reader.tables import TrackedTrial

WHEN = {"finished_at": "2026-01-01T01:00:00.000+00:00"}


def disturbed(trial_id: str = "t0001", *times_s: float, which: int = 1) -> TrialRecord:
    record = certified(trial_id, *(times_s or (0.1, 0.2)), **WHEN)
    note = {
        "timing": Timing.DISTURBED,
        "note": read_notes("others took its core for 66% of the time"),
    }
    calm, rest = record.runs[: len(record.runs) - which], record.runs[len(record.runs) - which :]
    runs = (*calm, *(run.model_copy(update=note) for run in rest))
    return record.model_copy(update={"runs": runs})


ESTIMATES = [trained("t0000", time_s=0.5, **WHEN), trained("t0001", time_s=0.9, **WHEN)]


def board_of(*records: TrialRecord) -> Board:
    (board,) = make_boards([(None, record) for record in records])
    return board


def answer(*records: TrialRecord) -> Answer:
    view = viewed([*ESTIMATES, *records])
    return answer_of(view.parts[0], view.boards)


@pytest.mark.parametrize("which", [1, 2])
def test_one_disturbed_run_is_enough_and_the_record_has_no_rank(which: int) -> None:
    record = disturbed(which=which)
    assert not record.is_certified and ranked_s(record) is None
    assert record.verdict == ended_as(record) == NOT_CERTIFIED
    assert record_history([record]) == ()
    calm = certified("t0001", 0.1, 0.2, **WHEN)
    assert calm.is_certified and calm.verdict == "certified" and len(record_history([calm])) == 1
    assert not ESTIMATES[0].is_certified, "an estimate is one whatever its clock"


def test_it_is_on_its_board_below_all_that_is_certified_and_says_why() -> None:
    first, second = board_of(disturbed(), certified("t0002", 0.7, 0.8)).rows
    assert (first.trial_id, first.rank, first.verification) == ("t0002", 1, "certified")
    assert (second.trial_id, second.rank, second.verification) == ("t0001", None, NOT_CERTIFIED)
    alone = board_of(disturbed())
    assert "not certified" in title(alone) and "disturbed runs of 1 row" in caption(alone)
    for shown in (as_markdown([alone]), as_csv([alone]), boards_page([alone])):
        assert NOT_CERTIFIED in shown
    assert "fresh seeds" in caption(alone)


def test_the_page_keeps_the_estimate_and_says_what_to_do() -> None:
    found = answer(disturbed("t0001", 0.1, 0.2, which=2))
    assert (found.verdict, found.figure) == ("disturbed", "0.500 s")
    assert found.winner is not None and found.winner.record.trial_id == "t0000"
    why = found.sure[0]
    assert "disturbed 2 of 2 runs (they took 66 % of the core)" in why
    assert "tune-speed certify study --again" in why
    assert not [sentence for sentence in found.sure if "alone on the device" in sentence]
    page = page_of([*ESTIMATES, disturbed()])
    assert 'class="card answer disturbed"' in page and f">{NOT_CERTIFIED}</span>" in page
    assert "<h3>Not certified</h3>" in page and "Certified against estimated" not in page
    assert "tune-speed certify study --again</pre>" in page


def test_what_is_certified_beside_it_is_the_answer() -> None:
    found = answer(disturbed("t0000"), certified("t0001", 0.7, 0.8))
    assert (found.verdict, found.figure) == ("certified", "0.750 s")
    assert "t0000 with 0.500 s, was not certified" in " ".join(found.sure)


def test_a_certification_says_it_at_its_end_and_has_no_best() -> None:
    record = disturbed()
    finalist = TrackedTrial(run_id="", experiment_id="", record=ESTIMATES[1])
    plan = CertifyConfig(seeds=2, final=0, final_seeds=1)
    race = CertificationSchedule([finalist.name], leader=None, plan=plan, seed_base="", miss_s=None)
    for run in record.runs:
        turn = race.next()
        assert turn is not None
        race.add(turn, run)
    parts = ((record,), (finalist,), tuple(ESTIMATES), race.ranks(), Path("study"), (), False)
    result = CertifyResult(*parts)
    found = Certified(study="study", result=result)
    assert found.best is None and found.boards[0].rows[0].rank is None
    assert certification_text(result).startswith("Not certified: other programs disturbed 1 of 2")
    (row,) = luck(result)
    assert (row["certified_s"], row["ratio"], row["hits"]) == (None, None, 2)


def test_rounds_that_were_disturbed_say_nothing_of_who_is_faster() -> None:
    plan = CertifyConfig(seeds=2, final=0, final_seeds=1)
    race = CertificationSchedule(["s/a", "s/b"], leader=None, plan=plan, seed_base="", miss_s=None)
    slow = disturbed("t0001", 9.0, which=1).runs[0]
    while (turn := race.next()) is not None:
        calm = certified("t0001", 1.0 if turn.name == "s/a" else 2.0).runs[0]
        race.add(turn, slow if (turn.name, turn.round) == ("s/a", 0) else calm)
    ratios = {each.name: each.comparison and each.comparison.ratio for each in race.ranks()}
    assert ratios == {"s/a": pytest.approx(0.5), "s/b": pytest.approx(2.0)}


def test_store_and_commands_neither_rank_nor_export_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Done]
) -> None:
    uri = store_of([*ESTIMATES, disturbed()], folder=tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (tracked,) = find_trials(Store(uri), Query(study="study", kind="certified"))
    data = Store(uri).create().get_run(tracked.run_id).data
    assert data.tags["tune_speed.verdict"] == NOT_CERTIFIED and "expected_s" not in data.metrics
    assert data.tags["mlflow.note.content"].startswith("**not certified")
    boards = call("leaderboard", "--study", "study", "--json", folder=tmp_path).json
    rows = {board["kind"]: [(r["trial_id"], r["rank"]) for r in board["rows"]] for board in boards}
    assert rows["certified"] == [("t0001", None)] and rows["estimate"][0] == ("t0000", 1)
    assert call("best", "--study", "study", "--export", "a.yaml", folder=tmp_path).code == 0
    assert "t0000" in (tmp_path / "a.yaml").read_text()
    assert call("best", "--kind", "certified", folder=tmp_path).code == 1
    compared = call("compare", "study/t0000", "study/t0001@certified", "--json", folder=tmp_path)
    assert compared.json["result"]["kind"] == ["estimate", NOT_CERTIFIED]
    again = find_trial(Store(uri), "study/t0001@certified").record
    assert NOT_CERTIFIED in describe(again, run_id="r") and NOT_CERTIFIED in recipe_yaml(
        again, run_id="r"
    )
    # It is not the one to beat either.
    other = replace(tracked, record=trained("t0009", study="other"))
    assert find_leader(Store(uri), [other]) is None


def test_watching_counts_what_is_certified() -> None:
    seen = status_dict(glance(viewed([*ESTIMATES, disturbed(), certified("t0000", 0.7, 0.8)])))
    assert [part["certified"] for part in seen["parts"]] == [1]


def test_a_busy_machine_is_named_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda: 2)
    for share, threads, is_busy in ((96.0, 1, True), (3.0, 2, False), (40.0, 2, True)):
        monkeypatch.setattr("psutil.cpu_percent", lambda _, found=share: found)
        assert bool(busy_text(threads)) is is_busy
    assert "other programs use 0.8 of 2 cores" in busy_text(2)
