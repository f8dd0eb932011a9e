"""How commands end, by what the call that they make returned; slow tests have them whole.

Searches and trainings are handed over as ended ones: what is printed of them, where, and the exit
codes are the commands' own.
"""

import csv
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import making
from helpers.command import Done
from helpers.experiments.ablations import RECIPE, ablated, make_run
from helpers.experiments.profiles import make_profile
from helpers.making import make_record
from helpers.tracking.stores import store_of

from tune_speed.api import calls, study
from tune_speed.api.ablated import Ablated
from tune_speed.api.certified import Certified
from tune_speed.api.study import Study
from tune_speed.api.trained import Trained
from tune_speed.cli import common
from tune_speed.core.records import Recommended, Status, TrialRecord
from tune_speed.experiments.ablation.ablate import Ablation
from tune_speed.experiments.certification.certify import CertifyResult
from tune_speed.experiments.profiling import profile
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.tuning.search import SearchResult

Call = Callable[..., Done]


def study_of(*records: TrialRecord, stopped: bool = False, **fields: Any) -> Study:
    boards = tuple(make_boards((None, record) for record in records))
    found = [r for r in records if r.time_to_target_s is not None]
    favourites = tuple(
        Recommended(trial_id=r.trial_id, runs=1, hits=1, expected_s=r.time_to_target_s or 0.0)
        for r in found
    )
    place = (Path("/there/study"), "sqlite:////there/m.db")
    result = SearchResult(records, boards, *place, (), stopped, "", favourites)
    return Study(name="study", result=result, **fields)


def certified_of(*records: TrialRecord, stopped: bool = False) -> Certified:
    result = CertifyResult(records, (), records, (), Path("/there"), (), stopped)
    return Certified(study="my study", result=result)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], dict[str, Any]]:
    """Lets a call return what is given; yields what the command asked for."""

    def give(name: str, found: Any) -> dict[str, Any]:
        asked: dict[str, Any] = {}

        def answer(*arguments: Any, **options: Any) -> Any:
            asked.update(options, arguments=arguments)
            if isinstance(found, Study):
                options["progress"].searched(found)
            return found

        monkeypatch.setattr(study if name == "certify" else calls, name, answer)
        return asked

    return give


def test_search_hands_its_options_on_as_texts_of_a_study_file(
    given: Any, call: Call, tmp_path: Path
) -> None:
    asked = given("search", study_of(make_record()))
    options = ("--trials", "7", "--time-budget", "90s", "--concurrent", "auto", "--resume")
    done = call("search", "tiny.yaml", *options, "--set", "study=other", folder=tmp_path)
    assert done.code == 0, done.err
    texts = ["search.trials=7", "search.time_budget=90s", "search.concurrent=auto"]
    assert asked["set"] == ["study=other", *texts]
    assert asked["arguments"] == ("tiny.yaml",) and asked["resume"] and not asked["download"]
    assert (asked["train"], asked["address"]) == (None, None)


def test_search_ends_with_its_board_and_where_results_are(
    given: Any, call: Call, tmp_path: Path
) -> None:
    given("search", study_of(make_record(), make_record("t0001", Status.MISSED)))
    done = call("search", "tiny.yaml", folder=tmp_path)
    assert done.code == 0, done.err
    assert "t0000" in done.out and "accuracy ≥ 0.9" in done.out
    assert "2 trials: 1 reached, 1 missed" in done.out and "/there/study" in done.out
    said = call("search", "tiny.yaml", "--json", folder=tmp_path)
    assert said.json["trials"] == {"reached": 1, "missed": 1} and said.json["study"] == "study"
    assert "accuracy ≥ 0.9" not in said.out.partition("{")[0]


def test_search_without_a_hit_ends_with_code_1(given: Any, call: Call, tmp_path: Path) -> None:
    given("search", study_of(make_record(status=Status.MISSED)))
    done = call("search", "tiny.yaml", folder=tmp_path)
    assert done.code == common.NOT_REACHED == 1, done.err


def test_search_without_a_hit_leaves_the_recipe_that_came_nearest(
    given: Any, call: Call, tmp_path: Path
) -> None:
    far, near, none = (make_record(f"t000{i}", Status.MISSED) for i in range(3))
    runs = (making.make_run(Status.MISSED, accuracy=0.99),)
    recipe = near.recipe | {"optimizer": {"sgd": {"lr": 0.3}}, "epochs": 2.5}
    near = near.model_copy(update={"runs": runs, "recipe": recipe})
    given("search", study_of(far, near, none))
    done = call("search", "tiny.yaml", folder=tmp_path)
    assert "wrote best.yaml" in done.err
    text = (tmp_path / "best.yaml").read_text()
    assert text.startswith(f"# study/{near.trial_id},") and "missed" in text.splitlines()[1]


def test_search_that_was_stopped_says_how_to_go_on_without_its_password(
    given: Any, call: Call, tmp_path: Path
) -> None:
    given("search", study_of(make_record(), stopped=True))
    storage = "search.storage=postgresql://me:hush@host/db"
    arguments = ("search", "my study.yaml", "--set", storage, "--resume")
    done = call(*arguments, folder=tmp_path)
    assert done.code == common.INTERRUPTED == 130
    shown = shlex.join([*arguments[:-1], "--resume"]).replace("hush", "***")
    assert done.err.splitlines()[-1] == f"stopped; resume with: tune-speed {shown}"


@pytest.mark.parametrize(
    ("stopped", "status", "code"),
    [(False, Status.REACHED, 0), (False, Status.MISSED, 1), (True, Status.REACHED, 130)],
)
def test_search_that_certifies_ends_as_its_certification_does(
    given: Any, call: Call, tmp_path: Path, stopped: bool, status: Status, code: int
) -> None:
    records = () if stopped else (make_record(status=status, kind="certified"),)
    certification = certified_of(*records, stopped=stopped)
    given("search", study_of(make_record(), certification=certification))
    done = call("search", "tiny.yaml", folder=tmp_path)
    assert done.code == code, done.err
    resumed = "stopped; resume with: tune-speed certify 'my study', and the same options"
    assert (resumed in done.err) == stopped


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("stopped", "status", "code"),
    [(False, Status.REACHED, 0), (False, Status.MISSED, 1), (True, Status.REACHED, 130)],
)
def test_certification_shows_what_it_found_or_how_to_go_on(
    given: Any, call: Call, tmp_path: Path, stopped: bool, status: Status, code: int, as_json: bool
) -> None:
    records = () if stopped else (make_record(status=status, kind="certified"),)
    asked = given("certify", certified_of(*records, stopped=stopped))
    options = ("--top", "3", "--seeds", "2", "--final", "0", "--again", "--device", "cpu")
    done = call("certify", "my study", *options, *["--json"] * as_json, folder=tmp_path)
    assert done.code == code, done.err
    assert asked["arguments"] == ("my study",) and asked["again"] and asked["device"] == "cpu"
    counts = [asked[name] for name in ("top", "seeds", "final", "final_seeds")]
    assert counts == [3, 2, 0, 20]
    if stopped:
        assert done.out == ""
        assert "tune-speed certify 'my study', and the same options" in done.err
    elif as_json:
        assert "certification" in done.json
    else:
        assert "t0000" in done.out


def test_function_is_loaded_before_the_search_and_named_in_what_to_do_next(
    given: Any, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text("def my_train(report, lr):\n    return lr\n")
    asked = given("certify", certified_of(stopped=True))
    done = call("certify", "study", "--train", "loop.py:my_train", folder=tmp_path)
    assert done.code == 130 and asked["train"].__name__ == "my_train"
    assert "tune-speed certify 'my study' --train loop.py:my_train, and" in done.err


@pytest.mark.parametrize("stopped", [False, True])
def test_ablation_prints_arms_and_effects_in_each_form(
    given: Any, call: Call, tmp_path: Path, stopped: bool
) -> None:
    runs = {
        name: [make_run(seed=seed, time_s=time_s + seed) for seed in range(3)]
        for name, time_s in (("base", 10.0), ("batch_size=64", 20.0))
    }
    result = ablated(runs, axes={"batch_size": 64})
    found = Ablated(ablation=Ablation(result, (), tmp_path, stopped), path=tmp_path, picture=None)
    asked = given("ablate", found)
    command = ("ablate", "tiny.yaml", "--axes", "batch_size=64", "--seeds", "3", "--again")
    printed = {
        form: call(*command, "--format", form, folder=tmp_path)
        for form in ("table", "csv", "markdown", "json")
    }
    for form, done in printed.items():
        assert done.code == 130 * stopped, (form, done.err)
        assert ("stopped; the same command resumes" in done.err) == stopped
        assert "batch_size=64" in done.out
    assert (asked["axes"], asked["seeds"], asked["again"]) == ("batch_size=64", 3, True)
    # A CSV file is one table, that of the arms; Markdown has both.
    header, *rows = csv.reader(printed["csv"].out.splitlines())
    assert [dict(zip(header, row, strict=True))["arm"] for row in rows] == list(runs)
    rulers = [line for line in printed["markdown"].out.splitlines() if line.startswith("| --")]
    assert len(rulers) == 2
    assert [arm["name"] for arm in printed["json"].json["arms"]] == list(runs)
    assert call(*command, "--json", folder=tmp_path).json == printed["json"].json


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = []

    def found(file: Any, **options: Any) -> Any:
        asked.append({"file": file, **options})
        return None if options["steps"] == 1 else make_profile()

    monkeypatch.setattr(profile, "profile_recipe", found)
    return asked


def test_profile_prints_phases_rates_and_advice(
    profiled: list[dict[str, Any]], call: Call, tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    command = ("profile", "tiny.yaml", "--steps", "7", "--device", "cpu")
    for form in ("table", "csv", "markdown", "json"):
        done = call(*command, "--format", form, folder=tmp_path)
        assert done.code == 0, done.err
        assert "backward" in done.out
        assert ("- " in done.out and "| --" in done.out) or form != "markdown"
    as_json = call(*command, "--json", folder=tmp_path).json
    assert as_json == make_profile().model_dump(mode="json") == done.json
    assert {each["steps"] for each in profiled} == {7}
    assert str(profiled[0]["file"].recipe.batch_size) == "50"


def test_profile_that_was_stopped_found_nothing(
    profiled: list[dict[str, Any]], call: Call, tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    stopped = call("profile", "tiny.yaml", "--steps", "1", folder=tmp_path)
    assert stopped.code == 130 and "nothing was found yet" in stopped.err and not stopped.out


@pytest.mark.parametrize(
    ("status", "stopped", "code"),
    [(Status.REACHED, False, 0), (Status.MISSED, False, 1), (Status.REACHED, True, 130)],
)
def test_training_ends_by_whether_it_met_the_target(
    given: Any, call: Call, tmp_path: Path, status: Status, stopped: bool, code: int
) -> None:
    record = make_record(status=status)
    given("train", Trained(name="tiny", record=record, was_stopped=stopped))
    done = call("train", "tiny.yaml", "--seeds", "3", folder=tmp_path)
    assert done.code == code, done.err
    assert "tiny" in done.out
    shown = "stopped; shown are the 1 of 3 runs that were done"
    assert (shown in done.err) == stopped


def test_report_is_written_and_its_figures_are_said(call: Call, tmp_path: Path) -> None:
    recipe = {"model": {"resnet20": {}}, "optimizer": {"sgd": {"lr": 0.3}}, "epochs": 2.5}
    records = [make_record(), make_record("t0001", Status.MISSED)]
    own = {"recipe": {**recipe, "batch_size": 64}}
    store_of([record.model_copy(update=own) for record in records], folder=tmp_path)
    done = call("report", "study", folder=tmp_path)
    assert done.code == 0, done.err
    page = tmp_path / "report.html"
    assert "report.html: 2 trials, " in done.out and page.absolute().as_uri() in done.out
    assert "still running" not in done.err and "t0001" in page.read_text()
    facts = call("report", "study", "--html", "b.html", "--json", folder=tmp_path).json
    assert (facts["path"], facts["trials"], facts["png"]) == ("b.html", 2, [])
    assert facts["bytes"] == (tmp_path / "b.html").stat().st_size and not facts["is_running"]
    gone = call("report", "studi", folder=tmp_path)
    assert gone.code == 2 and "'study'" in gone.err


def test_watch_of_a_search_that_has_ended_looks_once(call: Call, tmp_path: Path) -> None:
    store_of([make_record(), make_record("t0001", Status.MISSED)], folder=tmp_path)
    found = call("watch", "study", "--once", "--json", folder=tmp_path)
    assert found.code == 0, found.err
    assert found.json["study"] == "study"
    shown = call("watch", "study", "--once", folder=tmp_path)
    assert shown.code == 0 and "t0000" in shown.out
