import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_run

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.renamed import LEFT_TARGET
from tune_speed.study.file import load_study
from tune_speed.training.trial import Allotment, TrialSpec, make_record, utc_now
from tune_speed.tuning import admission
from tune_speed.tuning.driver.control import FILE
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.requests import Answer, checked_request, read_request
from tune_speed.tuning.driver.steering import Steering, configured_in, standing, steered
from tune_speed.tuning.driver.trial_files import write_trial_file
from tune_speed.tuning.policies import POLICY_NAMES

STUDY = """
study: steered
workload: digits
recipe:
  model: resnet20
  optimizer:
    choices: {sgd: {lr: {low: 0.01, high: 1.0}}, adamw: {lr: {low: 0.001, high: 0.1}}}
  epochs: {low: 1, high: 20}
  batch_size: 64
search: {trials: 9, concurrent: 2, time_budget: 10m, seed: 7}
"""
ROOM = 3


class Session:
    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder, self.now_s = folder, 0.0
        file = folder.parent / "steered.yaml"
        file.write_text(STUDY)
        self.begun = load_study(file, overrides=overrides)
        self.ledger = Ledger(folder)
        if self.ledger.header is None:
            self.ledger.begin({"workload_hash": "w0.97"})
        study = steered(self.begun, self.ledger.answers.values())
        self.controller = SearchController(
            study=study,
            ledger=self.ledger,
            allotment=Allotment(device="cpu"),
            observers=[],
            now=lambda: self.now_s,
        )
        self.answers: list[Answer] = []
        self.steering = Steering(
            self.controller,
            configured=configured_in(self.begun),
            room=lambda: ROOM,
            on_answer=self.answers.append,
        )

    def write(self, action: str, **fields: Any) -> None:
        """Writes a request, as a command does; nobody acts on it yet."""
        file = self.folder / FILE
        number = len(file.read_text().splitlines()) if file.exists() else 0
        line = {"id": f"{number:08x}", "at": utc_now(), "action": action, **fields}
        with file.open("a") as lines:
            lines.write(json.dumps(line) + "\n")

    def ask(self, action: str, **fields: Any) -> Answer:
        self.write(action, **fields)
        self.look()
        return self.answers[-1]

    def look(self, after_s: float = 1.0) -> None:
        self.now_s += after_s
        self.steering.look()

    def propose(self) -> TrialSpec:
        spec = self.controller.propose()
        assert isinstance(spec, TrialSpec)
        return spec

    def run_one(self, **run: Any) -> None:
        self.controller.finished(ended(self.propose(), **run))


def ended(
    spec: TrialSpec, status: Status = Status.REACHED, *, accuracy: float = 0.98, time_s: float = 1.0
) -> TrialRecord:
    run = make_run(status, accuracy=accuracy, time_s=time_s)
    if status != Status.CAPPED:
        num_train = spec.workload.num_train()
        assert num_train is not None
        run = run.model_copy(update={"steps": spec.recipe.steps(num_train=num_train)})
    return make_record(spec, spec.recipe, run, started_at=utc_now())


Begin = Callable[..., Session]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    sessions: list[Session] = []

    def begin(*overrides: str) -> Session:
        for session in sessions:
            session.ledger.close()
        sessions[:] = [Session(tmp_path / "study", *overrides)]
        return sessions[0]

    yield begin
    sessions[0].ledger.close()


# --- Try


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_trial_that_is_asked_for_is_the_next_under_every_policy(begin: Begin, policy: str) -> None:
    session = begin(f"search.policy={policy}")
    params = {"optimizer": "adamw", "optimizer.adamw.lr": 0.05, "epochs": 3}
    session.run_one()
    answer = session.ask("try", params=params)
    assert not answer.refused and "next trial" in answer.text
    spec = session.propose()
    assert spec.params == params and spec.trial_id == "t0001"
    assert spec.proposal_reason.kind == "by_hand"
    assert session.propose().proposal_reason.kind != "by_hand"


@pytest.mark.parametrize("policy", ["time_to_target", "random"])
def test_what_is_left_out_is_as_in_the_recommended_configuration(begin: Begin, policy: str) -> None:
    session = begin(f"search.policy={policy}")
    spec = session.propose()
    session.controller.finished(ended(spec))
    (lr,) = (value for name, value in spec.params.items() if name.endswith(".lr"))
    answer = session.ask("try", params={"epochs": 7})
    assert "as in t0000, which is recommended" in answer.text
    assert session.propose().params == {**spec.params, "epochs": 7}
    session.ask("try", params={f"optimizer.{spec.params['optimizer']}.lr": 0.02})
    again = session.propose().params
    assert again["epochs"] == spec.params["epochs"] and lr not in again.values()


def test_other_branch_than_the_recommended_one_is_filled_by_the_search(begin: Begin) -> None:
    session = begin()
    spec = session.propose()
    session.controller.finished(ended(spec))
    other = {"sgd": "adamw", "adamw": "sgd"}[str(spec.params["optimizer"])]
    session.ask("try", params={"optimizer": other})
    params = session.propose().params
    assert set(params) == {"optimizer", f"optimizer.{other}.lr", "epochs"}
    assert params["epochs"] == spec.params["epochs"]


def test_before_a_trial_met_the_target_the_search_chooses_the_rest(begin: Begin) -> None:
    session = begin()
    answer = session.ask("try", params={"epochs": 7})
    assert "the search's choice" in answer.text
    assert session.propose().params["epochs"] == 7


def test_trial_is_one_of_the_number_of_trials(begin: Begin) -> None:
    session = begin("search.trials=2")
    session.propose()
    assert not session.ask("try", params={"epochs": 7}).refused
    answer = session.ask("try", params={"epochs": 8})
    assert answer.refused and "Set trials=3 first" in answer.text
    assert session.propose().params["epochs"] == 7
    assert session.controller.propose() is None


def test_driver_holds_a_trial_against_the_space_itself(begin: Begin) -> None:
    session = begin()
    answer = session.ask("try", params={"epochs": 700})
    assert answer.refused and "epochs: must be from 1 to 20" in answer.text
    assert not session.controller.learning.wanted()


def test_trial_that_waits_when_the_driver_dies_is_tried_once_afterwards(begin: Begin) -> None:
    begin().ask("try", params={"epochs": 7})
    session = begin()
    assert session.propose().params["epochs"] == 7
    session = begin()
    # It did not finish, so it is run again, under its number; there is no second one.
    again, other = session.propose(), session.propose()
    assert (again.trial_id, again.params["epochs"]) == ("t0000", 7)
    assert other.proposal_reason.kind != "by_hand"


# --- Stop


def test_stopped_trial_ends_with_what_it_has_measured(begin: Begin) -> None:
    session = begin()
    spec, other = session.propose(), session.propose()
    session.controller.evaluated(ended(spec, Status.CAPPED, accuracy=0.4))
    answer = session.ask("stop", trial=spec.trial_id)
    assert (answer.text, session.steering.stops) == ("t0000 ends as it is", ["t0000"])
    record = session.ledger.records["t0000"]
    assert (record.status, record.stop_reason.kind) == (Status.CAPPED, "by_hand")
    assert [e.accuracy for e in record.runs[-1].evaluations] == [0.4]
    assert [*session.controller.trials.running] == [other.trial_id]


def test_stopped_trial_that_was_never_evaluated_teaches_nothing(begin: Begin) -> None:
    session = begin()
    session.ask("stop", trial=session.propose().trial_id)
    record = session.ledger.records["t0000"]
    assert (record.status, record.stop_reason.kind) == (Status.CAPPED, "by_hand")
    history = session.controller.learning.policy._history  # type: ignore[attr-defined]
    assert history.ended.trials == []


def test_run_again_that_is_stopped_does_not_count_as_too_slow(begin: Begin) -> None:
    session = begin("workload.mode=anytime")
    first = session.propose()
    session.controller.finished(ended(first, time_s=2.0))
    expected_s = [each.expected_s for each in session.controller.learning.favourites]
    session.ask("try", params=first.params)
    again = session.propose()
    assert again.params == first.params
    session.controller.evaluated(ended(again, Status.CAPPED, accuracy=0.4, time_s=1.0))
    session.ask("stop", trial=again.trial_id)
    favourites = session.controller.learning.favourites
    assert [each.expected_s for each in favourites] == expected_s == [2.0]


@pytest.mark.parametrize(
    ("trial", "why"),
    [("t0000", "it has ended: reached"), ("t0042", "there is no such trial")],
)
def test_only_what_runs_can_be_stopped(begin: Begin, trial: str, why: str) -> None:
    session = begin()
    session.run_one()
    session.propose()
    answer = session.ask("stop", trial=trial)
    assert answer.refused
    assert f"{trial} must run to be stopped, but {why} (running: t0001)." == answer.text


def test_trial_whose_process_has_written_its_record_is_not_stopped(begin: Begin) -> None:
    session = begin()
    spec = session.propose()
    write_trial_file(session.folder, ended(spec))
    answer = session.ask("stop", trial=spec.trial_id)
    assert answer.refused and "has just ended" in answer.text
    assert [*session.controller.trials.running] == ["t0000"]


def test_trial_stays_stopped_where_the_driver_dies_before_its_record(begin: Begin) -> None:
    session = begin()
    session.ask("stop", trial=session.propose().trial_id)
    file = session.folder / "ledger.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert json.loads(lines[-1])["event"] == "finished"
    file.write_text("".join(lines[:-1]))
    again = begin()
    assert again.ledger.records["t0000"].stop_reason.kind == "by_hand"
    assert again.propose().trial_id == "t0001"


# --- Pause and go on


def test_pause_lets_no_trial_begin_and_what_runs_end(begin: Begin) -> None:
    session = begin()
    spec = session.propose()
    assert "1 trial that run go on" in session.ask("pause").text
    assert session.controller.propose() is None and not session.controller.is_over()
    session.controller.finished(ended(spec))
    assert session.controller.propose() is None and not session.controller.is_over()
    assert session.ask("go-on").text == "trials begin again"
    assert session.propose().trial_id == "t0001"


def test_pause_outlasts_the_driver_and_is_said(begin: Begin) -> None:
    begin().ask("pause")
    session = begin()
    assert session.controller.propose() is None
    answers, study = session.ledger.answers.values(), session.controller.study
    (line,) = standing(answers, session.begun, study)
    assert "steer steered go-on" in line
    session.ask("go-on")
    assert begin().propose().trial_id == "t0000"


def test_time_budget_stands_still_while_nothing_runs_in_a_pause(begin: Begin) -> None:
    session = begin()
    spec = session.propose()
    session.ask("pause")
    session.look(after_s=9)  # A trial runs.
    assert session.controller.time_left_s() == 590
    session.controller.finished(ended(spec))
    session.look(after_s=500)
    session.look(after_s=500)
    assert session.controller.time_left_s() == 590
    session.ask("go-on")
    session.look(after_s=100)
    assert session.controller.time_left_s() == 490


# --- Set


def test_number_of_trials_is_changed(begin: Begin) -> None:
    session = begin("search.trials=2")
    session.propose()
    session.propose()
    assert session.controller.is_over()
    assert session.ask("set", trials=3).text == "trials was 2"
    session.propose()
    answer = session.ask("set", trials=2)
    assert answer.refused and "trials: must be at least 3, as so many have begun" in answer.text
    session.ask("set", trials=9)
    session.ask("set", trials=3)
    assert session.controller.propose() is None


def test_concurrency_is_changed_within_the_room_there_is(begin: Begin) -> None:
    session = begin()
    assert session.ask("set", concurrent=ROOM).text == "concurrent was 2"
    assert session.controller.study.search.at_once == ROOM
    assert session.propose().allotment.max_cotenants == ROOM - 1
    answer = session.ask("set", concurrent=ROOM + 1)
    assert answer.refused and f"concurrent: must be at most {ROOM}" in answer.text
    session.ask("set", concurrent=1)
    assert session.controller.study.search.at_once == 1


def test_time_budget_is_changed_and_taken_away(begin: Begin) -> None:
    session = begin()
    session.look(after_s=99)
    assert session.ask("set", time_budget="2m").text == "time_budget was 10m"
    assert session.controller.time_left_s() == 20
    answer = session.ask("set", time_budget=50.0)
    assert answer.refused and "must be more than the 1 min 41 s" in answer.text
    session.ask("set", time_budget=None)
    assert session.controller.time_left_s() is None


def test_nothing_of_a_request_is_done_where_a_part_is_refused(begin: Begin) -> None:
    session = begin()
    assert session.ask("set", trials=50, concurrent=ROOM + 1).refused
    assert session.controller.study.search.trials == 9


def test_settings_outlast_the_driver_unless_file_or_option_say_otherwise(begin: Begin) -> None:
    begin().ask("set", trials=50, concurrent=1)
    search = begin().controller.study.search
    assert (search.trials, search.at_once) == (50, 1)
    search = begin("search.trials=20").controller.study.search
    assert (search.trials, search.at_once) == (20, 1)


# --- Across a kill


def test_what_was_not_acted_on_is_acted_on_by_the_next_driver_once(begin: Begin) -> None:
    session = begin()
    session.ask("set", trials=20)
    session.write("set", trials=30)
    session.write("pause")
    for _ in range(2):
        session = begin()
        session.look()
        assert session.controller.study.search.trials == 30 and session.controller.is_paused
    lines = map(json.loads, (session.folder / "ledger.jsonl").read_text().splitlines())
    done = [line["request"]["id"] for line in lines if line["event"] == "steered"]
    assert done == ["00000000", "00000001", "00000002"]
    session.ask("set", trials=40)
    assert begin().controller.study.search.trials == 40


# --- Another target, as earlier versions took it


def test_another_target_is_refused_whoever_writes_the_request(begin: Begin) -> None:
    session = begin()
    answer = session.ask("set", target=0.5, trials=4)
    assert answer.refused and LEFT_TARGET in answer.text
    assert session.controller.study.search.trials != 4
    with pytest.raises(ConfigError, match=re.escape(LEFT_TARGET)):
        checked_request({"id": "0" * 8, "at": utc_now(), "action": "set", "target": 0.5})


@pytest.mark.parametrize("refused", [True, False])
def test_study_whose_target_was_changed_is_read_not_resumed(begin: Begin, refused: bool) -> None:
    session = begin()
    asked = {"id": "0" * 8, "at": utc_now(), "action": "set", "target": 0.5}
    answer = Answer(request=read_request(asked), at=utc_now(), refused=refused, text="was 0.97")
    session.ledger.steered(answer)
    again = begin()
    (kept,) = again.ledger.answers.values()
    assert kept == answer and kept.words.startswith("set target=0.5: ")
    found = admission.Admitted(again.begun, again.folder, "", "w", None)
    with pytest.raises(ConfigError) as caught:
        admission.admit(again.ledger, found, resume=True)
    assert ("set target=0.5" in str(caught.value)) is not refused
    if not refused:
        assert LEFT_TARGET in str(caught.value) and "warm_start=[steered]" in str(caught.value)
