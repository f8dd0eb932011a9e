import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.command import TINY_STUDY, Done, run_inside
from helpers.making import make_record

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import NOT_CERTIFIED, Status
from tune_speed.experiments.certification.certificate import Certificate
from tune_speed.experiments.certification.certify import find_estimates
from tune_speed.experiments.certification.schedule import FIRST_FRESH_SEED
from tune_speed.tracking import Store, Tracker
from tune_speed.training.saved_model import read_model

STUDY = TINY_STUDY.replace("value: 0.8", "value: 0.3").replace("trials: 6", "trials: 3")
STUDY = STUDY.replace("{low: 1, high: 10}", "{low: 4, high: 6}")
STUDY = STUDY.replace("concurrent: 1", "concurrent: 2")  # So that their steps are isolated.
STUDY = STUDY.replace("max_train_s: 30", "max_train_s: 30\n  certify_on: train+validation")
STUDY += "certify: {top: 2, seeds: 2, final: 1, final_seeds: 2}\n"
OPTIONS = ("--top", "2", "--seeds", "2", "--final", "1", "--final-seeds", "2")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certify")
    (folder / "tiny.yaml").write_text(STUDY)
    return folder


@pytest.fixture(scope="module")
def certified(folder: Path, session_cache: Path) -> Iterator[Any]:
    os.environ["TUNE_SPEED_CACHE"] = str(session_cache)  # As for each test, but before the first.
    done = run_inside("search", "tiny.yaml", "--json", folder=folder)
    assert done.code in (0, 1), done.err  # 1: others disturbed the certification.
    assert sum(done.json["trials"].values()) == 3
    yield done.json["certification"]
    os.environ.pop("TUNE_SPEED_CACHE", None)


def events(folder: Path, number: int = 1) -> list[dict[str, Any]]:
    path = folder / "tune_speed_studies" / "tiny" / f"certify-{number}.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def turns(folder: Path, number: int = 1) -> list[tuple[str, int, str]]:
    ran = [event for event in events(folder, number) if event["event"] == "run"]
    return [(event["stage"], event["round"], event["name"]) for event in ran]


def test_certificates_hold_all_that_a_row_must(certified: Any) -> None:
    certificates = [Certificate.model_validate(each) for each in certified["certificates"]]
    assert len(certificates) == 2
    for certificate in certificates:
        assert certificate.task.split_part == "test"
        assert certificate.task.trained_on == "train+validation"
        assert certificate.result.samples == 400 * certificate.result.epochs
        assert certificate.system.is_exclusive and certificate.system.cotenants == ()
        assert certificate.provenance.has_fresh_seeds
        assert certificate.provenance.tuning_trials == 3
        assert certificate.recipe.num_parameters > 200_000
        assert certificate.result.pflop is not None and certificate.result.pflop > 0
        assert certificate.verification.status in ("re-timed", NOT_CERTIFIED)


def test_seeds_are_fresh_and_common_to_a_round(folder: Path, certified: Any) -> None:
    ran = [event for event in events(folder) if event["event"] == "run"]
    by_round = {
        (e["stage"], e["round"]): {
            r["seed"] for r in ran if r["round"] == e["round"] and r["stage"] == e["stage"]
        }
        for e in ran
    }
    assert all(len(seeds) == 1 for seeds in by_round.values())
    assert all(event["seed"] >= FIRST_FRESH_SEED for event in ran)
    assert all(event["record"]["runs"][0]["seed"] == event["seed"] for event in ran)


def test_finalists_take_turns_and_the_best_runs_the_final(folder: Path, certified: Any) -> None:
    names = [name for stage, _, name in turns(folder) if stage == "first"]
    assert len(set(names)) == 2
    assert len(names) == 4 and len(set(names[:2])) == len(set(names[2:])) == 2
    assert len({name for stage, _, name in turns(folder) if stage == "final"}) == 1


def test_certified_rows_and_estimates_stand_on_separate_boards(
    folder: Path, certified: Any, call: Callable[..., Done]
) -> None:
    boards = call("leaderboard", "--study", "tiny", "--json", folder=folder).json
    assert sorted(board["kind"] for board in boards) == ["certified", "estimate"]
    rows = {board["kind"]: board["rows"] for board in boards}
    assert {row["n"] for row in rows["estimate"]} == {1}
    assert {row["n"] for row in rows["certified"]} == {2}
    for row in rows["certified"]:
        is_disturbed = "disturbed" in row["timing"]
        assert row["verification"] == (NOT_CERTIFIED if is_disturbed else "re-timed")
        assert (row["rank"] is None) is is_disturbed
    timings = {timing for row in rows["certified"] for timing in row["timing"].split(", ")}
    assert timings <= {"exclusive", "disturbed"}
    assert {row["timing"] for row in rows["estimate"]} <= {"isolated", "disturbed"}


def test_the_best_is_the_certified_one_and_can_be_trained_again(
    folder: Path, certified: Any, call: Callable[..., Done]
) -> None:
    done = call("best", "--study", "tiny", "--export", "best.yaml", folder=folder)
    assert done.code == 0, done.err
    ranked = call("leaderboard", "--study", "tiny", "--json", folder=folder).json
    kinds = {b["kind"] for b in ranked if any(row["rank"] for row in b["rows"])}
    assert min(kinds) in (folder / "best.yaml").read_text().splitlines()[1]


def test_a_certified_trial_is_shown_beside_its_estimate(
    folder: Path, certified: Any, call: Callable[..., Done]
) -> None:
    name = certified["luck"][0]["name"]
    again = call("show", f"{name}@certified", "--json", folder=folder).json
    assert (again["kind"], len(again["runs"])) == ("certified", 2)
    assert Certificate.model_validate(again["certificate"])


def test_luck_is_estimate_beside_certified_time(certified: Any) -> None:
    for row in certified["luck"]:
        assert row["n"] == 2
        if row["ratio"] is not None:
            assert row["ratio"] == pytest.approx(row["certified_s"] / row["estimate_s"])


def test_given_again_nothing_runs_again(
    folder: Path, certified: Any, call: Callable[..., Done]
) -> None:
    before = turns(folder)
    done = call("certify", "tiny", *OPTIONS, "--json", folder=folder)
    assert done.code in (0, 1), done.err
    assert turns(folder) == before
    boards = call("leaderboard", "--study", "tiny", "--json", folder=folder).json
    assert sum(board["trials"] for board in boards if board["kind"] == "certified") == 2


def test_other_options_are_refused_with_what_differs(
    folder: Path, certified: Any, call: Callable[..., Done]
) -> None:
    done = call("certify", "tiny", "--top", "1", folder=folder)
    assert done.code == 2
    assert "top = 2, now 1" in done.err and "--again" in done.err


def test_ctrl_c_loses_no_run_that_was_done(
    folder: Path, certified: Any, call: Callable[..., Done]
) -> None:
    def interrupt() -> None:
        deadline = time.monotonic() + 120
        while not turns(folder, 2) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    few = ("--top", "2", "--seeds", "2", "--final", "0")
    user = threading.Thread(target=interrupt)
    user.start()
    save = ("--save", "best.pt")
    stopped = run_inside("certify", "tiny", *few, *save, "--again", folder=folder)
    user.join()
    assert stopped.code == 130, stopped.err
    assert "2 finalists: at most 4 to go" in stopped.err
    done_before = turns(folder, 2)
    assert 1 <= len(done_before) < 4
    again = call("certify", "tiny", *few, *save, folder=folder)
    assert again.code in (0, 1), again.err
    kept, _ = read_model(folder / "best.pt")
    runs = [each["record"]["runs"][0] for each in events(folder, 2) if each["event"] == "run"]
    finals = {run["evaluations"][-1]["accuracy"] for run in runs}
    assert kept.part == "test" and kept.value in finals
    assert turns(folder, 2)[: len(done_before)] == done_before
    assert len(set(turns(folder, 2))) == len(turns(folder, 2))


def test_a_study_without_a_hit_cannot_be_certified(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(Store(uri), study="study", study_tags={}, linger_s=0.02)
    tracker.trial_finished(record=make_record("t0000", Status.MISSED, study="study"))
    assert tracker.close(timeout_s=30) == ()
    with pytest.raises(ConfigError, match="must have a trial that met its target"):
        find_estimates(Store(uri), "study", None)
