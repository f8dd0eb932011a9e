import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.making import make_evaluation, make_run
from helpers.tuning.policies import Capped

from tune_speed.core.errors import StorageError
from tune_speed.core.records import Evaluation, Status, StepTime, Timing, TrialRecord
from tune_speed.core.words import ProposalKind, ProposalReason, StopKind, StopReason, joined
from tune_speed.study.file import load_study
from tune_speed.training.checkpoint.store import CheckpointStore, Header, head
from tune_speed.training.trial import Allotment, TrialSpec, make_record
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.trial_files import write_trial_file
from tune_speed.tuning.driver.trials import MOST_BLAMELESS
from tune_speed.tuning.policy.base import Outcome, PriorTrial, Problem, SearchTarget
from tune_speed.tuning.policy.curve import Curve

STUDY = """
study: conducted
workload: digits
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0, log: true}}}
  epochs: {low: 1, high: 20}
  batch_size: 64
search: {trials: 3, policy: random, time_budget: 10m, seed: 7}
"""


TIME_TO_TARGET = ("search.policy=time_to_target",)


def capped(controller: SearchController) -> Capped:
    target = SearchTarget(0.97, "anytime", 1e9)
    return Capped(Problem(controller.study.space, target, lambda params: None, 0))


class Witness:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def trial_started(
        self, *, trial_id: str, params: dict[str, Any], recipe: dict[str, Any]
    ) -> None:
        self.seen.append(("started", trial_id))

    def trial_evaluated(self, *, trial_id: str, evaluation: Evaluation) -> None:
        self.seen.append(("evaluated", f"{trial_id} at {evaluation.step}"))

    def trial_finished(self, *, record: TrialRecord) -> None:
        self.seen.append(("finished", record.trial_id))

    def trial_interrupted(self, *, trial_id: str, reason: str) -> None:
        self.seen.append(("interrupted", trial_id))


Begin = Callable[..., SearchController]


@pytest.fixture
def witness() -> Witness:
    return Witness()


@pytest.fixture
def begin(tmp_path: Path, witness: Witness) -> Any:
    file = tmp_path / "conducted.yaml"
    file.write_text(STUDY)
    open_ledgers: list[Ledger] = []

    def begin(*, overrides: tuple[str, ...] = (), now: Callable[[], float] = lambda: 0.0) -> Any:
        for ledger in open_ledgers:
            ledger.close()
        open_ledgers[:] = [Ledger(tmp_path / "study")]
        if open_ledgers[0].header is None:
            open_ledgers[0].begin({"workload_hash": "w"})
        return SearchController(
            study=load_study(file, overrides=overrides),
            ledger=open_ledgers[0],
            allotment=Allotment(device="cpu"),
            observers=[witness],
            now=now,
        )

    yield begin
    open_ledgers[0].close()


def propose(controller: SearchController) -> TrialSpec:
    spec = controller.propose()
    assert spec is not None
    return spec


def ended(spec: TrialSpec, status: Status = Status.REACHED, **run: Any) -> TrialRecord:
    return make_record(spec, spec.recipe, make_run(status, **run), started_at="")


def test_search_ends_after_its_trials(begin: Begin) -> None:
    controller = begin()
    for _ in range(3):
        controller.finished(ended(propose(controller)))
    assert controller.propose() is None
    assert controller.num_finished == 3


def test_each_trial_has_its_own_seed_and_keeps_it(begin: Begin) -> None:
    specs = [propose(begin()) for _ in range(1)] + [propose(begin())]
    assert [spec.seed for spec in specs] == [700_000, 700_000]
    assert propose(begin()).trial_id == "t0000"


def window(
    key: str, step_s: float, *, reference_s: float | None = 0.01, trial: str = "t0000", at: str = ""
) -> StepTime:
    return StepTime(
        key=key,
        step_s=step_s,
        low_s=step_s,
        high_s=step_s,
        num_steps=9,
        measured_in=f"conducted/{trial}",
        measured_at=at or f"2026-01-01T00:00:0{trial[-1]}+00:00",
        place="here",
        reference_s=reference_s,
    )


def clocked(spec: TrialSpec, *windows: StepTime, steps: int = 10, **fields: Any) -> TrialRecord:
    """Returns a run of so many steps that measured its own step time."""
    step_time = windows[0]
    train_s = steps * step_time.step_s
    run = make_run(time_s=train_s, **fields)
    update = {
        "timing": Timing.ISOLATED,
        "steps": steps,
        "step_times": (step_time,),
        "windows": windows,
        "shape_steps": ((0, steps),),
        "step_time_ms": 1000 * step_time.step_s,
    }
    return make_record(spec, spec.recipe, run.model_copy(update=update), started_at="")


def known(spec: TrialSpec) -> dict[str, float]:
    return {each.key: each.step_s for each in spec.step_times}


def test_windows_that_trials_measured_go_pooled_with_those_that_follow(begin: Begin) -> None:
    controller = begin()
    first, second = propose(controller), propose(controller)
    assert first.step_times == second.step_times == ()
    controller.finished(clocked(first, window("k", 0.1)))
    controller.finished(clocked(second, window("k", 0.4, trial="t0001")))
    assert known(propose(controller)) == pytest.approx({"k": 0.2}), "the mean of logarithms"


def test_window_goes_with_those_that_begin_before_its_trial_ends(begin: Begin) -> None:
    controller = begin()
    spec = propose(controller)
    controller.evaluated(clocked(spec, window("k", 0.1), status=Status.CAPPED))
    assert known(propose(controller)) == pytest.approx({"k": 0.1})
    assert spec.trial_id in controller.trials.running


def test_resumed_search_knows_the_windows_of_its_ledger(begin: Begin) -> None:
    controller = begin()
    controller.finished(clocked(propose(controller), window("k", 0.1)))
    assert known(propose(begin())) == pytest.approx({"k": 0.1})


def test_kinds_are_told_at_one_speed_though_the_machine_slowed_down(begin: Begin) -> None:
    controller = begin()
    first, second = propose(controller), propose(controller)
    controller.finished(clocked(first, window("a", 0.1, reference_s=0.01)))
    controller.finished(clocked(second, window("b", 0.3, reference_s=0.02, trial="t0001")))
    assert known(propose(controller)) == pytest.approx({"a": 0.1, "b": 0.15})


def test_a_search_that_ends_makes_all_clocks_of_its_best_step_times(begin: Begin) -> None:
    controller = begin()
    first, second = propose(controller), propose(controller)
    # The first was timed while the machine was slow by half: it seemed the slower one.
    controller.finished(clocked(first, window("a", 0.3, reference_s=0.02)))
    controller.finished(clocked(second, window("b", 0.2, reference_s=0.01, trial="t0001")))
    assert controller.learning.favourites[0].trial_id == second.trial_id
    later = window("b", 0.2, reference_s=0.01, trial="t0002")
    changed = controller.reclock([later])
    assert changed == (first.trial_id, second.trial_id)
    runs = [record.runs[-1] for record in controller.ledger.records.values()]
    assert [run.time_to_target_s for run in runs] == pytest.approx([1.5, 2.0])
    assert [run.clocks.train_s for run in runs] == pytest.approx([1.5, 2.0])
    assert "re-clocked: 300 → 150 ms a step, by 1 window" in joined(runs[0].note)
    assert (runs[1].step_times[0].num_windows, runs[1].note) == (2, ()), "surer, and no other"
    assert controller.learning.favourites[0].trial_id == first.trial_id, (
        "what is recommended follows"
    )
    assert controller.reclock() == (), "once more changes nothing"
    resumed = begin()
    assert [r.runs[-1] for r in resumed.ledger.records.values()] == runs
    assert known(propose(resumed)) == pytest.approx({"a": 0.15, "b": 0.2})


def test_kind_with_an_old_or_disturbed_window_is_timed_again_if_cheap(begin: Begin) -> None:
    seconds = [0.0]
    controller = begin(now=lambda: seconds[0], overrides=("search.trials=9",))
    old, disturbed = window("old", 0.1), window("disturbed", 0.1, trial="t0001")
    controller.finished(clocked(propose(controller), old))
    assert propose(controller).due_step_times == (), "one percent of no time is nothing"
    seconds[0] = 120.0
    disturbed = disturbed.model_copy(update={"disturbed": "others"})
    for each in (disturbed, window("new", 0.1, trial="t0002")):
        controller.finished(clocked(propose(controller), each))
    assert set(propose(controller).due_step_times) == {"old", "disturbed"}


def test_only_what_overlaps_with_the_first_is_its_rival(begin: Begin) -> None:
    controller = begin(overrides=("search.trials=9", *TIME_TO_TARGET))
    specs = [propose(controller) for _ in range(3)]
    for number, (spec, step_s) in enumerate(zip(specs, (0.1, 0.101, 0.2), strict=True)):
        each = window(f"k{number}", step_s, trial=f"t000{number}")
        sure = {"low_s": 0.98 * step_s, "high_s": 1.02 * step_s}
        controller.finished(clocked(spec, each.model_copy(update=sure), accuracy=0.99))
    rivals = [record.trial_id for record in controller.learning.rivals()]
    assert rivals == ["t0000", "t0001"]


def test_nothing_starts_after_the_time_budget(begin: Begin) -> None:
    seconds = [0.0]
    controller = begin(now=lambda: seconds[0])
    propose(controller)
    seconds[0] = 599.0
    assert controller.time_left_s() == 1.0
    propose(controller)
    seconds[0] = 600.0
    assert controller.propose() is None


def test_share_spent_of_a_search_is_that_of_its_trials_or_of_its_time(begin: Begin) -> None:
    seconds = [0.0]
    controller = begin(overrides=("search.trials=10",), now=lambda: seconds[0])
    assert controller.spent() == 0.0
    first = propose(controller)
    assert controller.spent() == 0.1
    seconds[0] = 30.0
    assert controller.spent() == 0.1
    seconds[0] = 300.0  # Of ten minutes.
    assert controller.spent() == 0.5
    controller.finished(ended(first))
    for _ in range(7):
        propose(controller)
    assert controller.spent() == 0.8
    seconds[0] = 540.0
    assert controller.spent() == pytest.approx(0.9)


def test_share_spent_without_a_time_budget_is_that_of_the_trials(begin: Begin) -> None:
    overrides = ("search.trials=4", "search.time_budget=null")
    controller = begin(overrides=overrides, now=lambda: 1e9)
    controller.finished(ended(propose(controller)))
    propose(controller)
    assert controller.spent() == 0.5
    # Of a resumed search, what earlier sessions finished counts; what they had begun runs again.
    assert begin(overrides=overrides).spent() == 0.25


def test_policy_knows_what_is_spent_when_it_is_asked(begin: Begin) -> None:
    seconds = [0.0]
    controller = begin(overrides=("search.trials=4",), now=lambda: seconds[0])
    spent = []
    for seconds[0] in (0.0, 0.0, 600.0 * 0.75):
        propose(controller)
        spent.append(controller.learning.policy.spent)
    assert spent == [0.0, 0.25, 0.75]


@pytest.mark.parametrize("policy", ["random", "time_to_target"])
def test_recommended_trial_is_of_the_study_and_met_the_target(begin: Begin, policy: str) -> None:
    controller = begin(overrides=(f"search.policy={policy}", "search.trials=9"))
    controller.finished(ended(propose(controller), Status.MISSED))
    assert controller.learning.favourites == ()
    spec = propose(controller)
    controller.finished(ended(spec, time_s=7.0))
    (best,) = controller.learning.favourites
    assert (best.study, best.trial_id, best.runs, best.hits) == ("conducted", spec.trial_id, 1, 1)
    assert begin(overrides=(f"search.policy={policy}",)).learning.favourites == (best,)


def test_proposal_is_on_disk_before_the_trial_is_known(begin: Begin, tmp_path: Path) -> None:
    spec = propose(begin())
    assert spec.trial_id in (tmp_path / "study" / "ledger.jsonl").read_text()


def test_resumed_search_runs_no_finished_trial_again(begin: Begin) -> None:
    first = begin()
    done, running = propose(first), propose(first)
    first.finished(ended(done))
    second = begin()
    again = propose(second)
    same = {"trial_id", "params", "seed"}
    assert again.model_dump(include=same) == running.model_dump(include=same)
    assert propose(second).trial_id == "t0002"
    assert second.propose() is None


def test_record_that_the_killed_driver_missed_is_taken_over(begin: Begin, tmp_path: Path) -> None:
    spec = propose(begin())
    write_trial_file(tmp_path / "study", ended(spec))
    controller = begin()
    assert controller.num_finished == 1
    assert propose(controller).trial_id == "t0001"


def test_observers_hear_each_evaluation_once(begin: Begin, witness: Witness) -> None:
    controller = begin()
    spec = propose(controller)
    curve = tuple(make_evaluation(step=step) for step in (1, 2, 3))
    for length in (1, 2):
        run = make_run(Status.CAPPED).model_copy(update={"evaluations": curve[:length]})
        controller.evaluated(make_record(spec, spec.recipe, run, started_at=""))
    run = make_run().model_copy(update={"evaluations": curve})
    controller.finished(make_record(spec, spec.recipe, run, started_at=""))
    evaluated = [what for kind, what in witness.seen if kind == "evaluated"]
    assert evaluated == ["t0000 at 1", "t0000 at 2", "t0000 at 3"]
    assert witness.seen[0] == ("started", "t0000")
    assert witness.seen[-1] == ("finished", "t0000")


def test_trial_that_cannot_win_is_stopped_and_recorded_with_the_reason(begin: Begin) -> None:
    controller = begin(overrides=("workload.mode=anytime",))
    controller.learning.policy = capped(controller)
    controller.finished(ended(propose(controller), time_s=2.0))
    slow = propose(controller)
    reason = controller.evaluated(ended(slow, Status.CAPPED, time_s=3.0))
    assert reason is not None and reason.figures == {"at_s": 3.0, "best": "t0000", "best_s": 2.0}
    record = controller.ledger.records[slow.trial_id]
    assert (record.status, record.stop_reason) == (Status.CAPPED, reason)
    assert controller.trials.running == {}


def test_untrained_model_is_no_reason_to_stop(begin: Begin) -> None:
    controller = begin(overrides=("workload.mode=anytime",))
    controller.finished(ended(propose(controller), time_s=2.0))
    spec = propose(controller)
    curve = (make_evaluation(step=0, train_s=3.0),)
    run = make_run(Status.CAPPED).model_copy(update={"evaluations": curve})
    assert controller.evaluated(make_record(spec, spec.recipe, run, started_at="")) is None


def test_reason_of_a_proposal_is_in_ledger_and_record(begin: Begin, tmp_path: Path) -> None:
    controller = begin(overrides=TIME_TO_TARGET)
    spec = propose(controller)
    controller.finished(ended(spec))
    reason = ProposalReason.of(ProposalKind.START)
    assert controller.ledger.records[spec.trial_id].proposal_reason == reason
    assert begin(overrides=TIME_TO_TARGET).ledger.proposals[spec.trial_id].reason == reason


def test_points_to_evaluate_are_tried_first_and_filled_up(begin: Begin) -> None:
    points = "[{epochs: 4}, {optimizer.sgd.lr: 0.5, epochs: 2}]"
    controller = begin(overrides=(*TIME_TO_TARGET, f"search.points_to_evaluate={points}"))
    first, second = propose(controller).params, propose(controller).params
    assert first["epochs"] == 4
    assert 0.01 <= first["optimizer.sgd.lr"] <= 1.0
    assert second == {"optimizer.sgd.lr": 0.5, "epochs": 2}


def test_search_that_cannot_beat_its_leader_ends_and_says_so(begin: Begin) -> None:
    """At 1 s a step, the shortest run takes 18 s, and the leader took one of them."""
    controller = begin(overrides=(*TIME_TO_TARGET, "search.trials=9"))
    run = make_run(time_s=1.0, accuracy=0.99).model_copy(update={"step_time_ms": 1000.0})
    for number in range(4):  # The leader itself is run until its four runs say how good it is.
        spec = propose(controller)
        assert (spec.proposal_reason.kind == "again") == bool(number)
        controller.finished(make_record(spec, spec.recipe, run, started_at=""))
        assert controller.why_exhausted is None
    assert controller.propose() is None
    assert controller.is_over()
    assert controller.end() == StopReason.of(StopKind.NOTHING_BETTER)
    last = json.loads((controller.ledger.folder / "ledger.jsonl").read_text().splitlines()[-1])
    assert last == {"event": "ended", "reason": {"kind": "nothing_better"}}
    assert begin(overrides=TIME_TO_TARGET).num_finished == 4  # It is no obstacle to resuming.


SETTLED = StopReason.of(StopKind.SETTLED, better_by=0.05, chance=0.01)


def test_search_that_settled_says_why(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = begin(overrides=(*TIME_TO_TARGET, "search.trials=9"))
    controller.finished(ended(propose(controller)))
    policy = controller.learning.policy
    monkeypatch.setattr(policy, "ask", lambda: None)
    monkeypatch.setattr(type(policy), "why_settled", SETTLED)
    assert controller.propose() is None
    monkeypatch.undo()
    controller.learning.policy = controller.learning._make_policy()
    assert controller.is_over()
    assert controller.why_exhausted == SETTLED


def test_policy_is_asked_again_after_a_trial(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = begin()
    first, second = propose(controller), propose(controller)
    answers = iter([None, controller.learning.policy.ask])
    monkeypatch.setattr(controller.learning.policy, "ask", lambda: (a := next(answers)) and a())
    for _ in range(3):
        assert controller.propose() is None
    assert not controller.is_over()
    controller.finished(ended(first))
    assert propose(controller).trial_id == "t0002"
    controller.finished(ended(second))
    assert controller.why_exhausted is None


def test_costs_are_known_again_after_a_restart(begin: Begin) -> None:
    controller = begin(overrides=TIME_TO_TARGET)
    spec = propose(controller)
    assert controller.learning.cost_of(spec.params) is None
    controller.finished(ended(spec))
    cost = controller.learning.cost_of(spec.params)
    assert cost is not None
    assert cost.num_steps == spec.recipe.steps(num_train=1150)
    assert begin(overrides=TIME_TO_TARGET).learning.cost_of(spec.params) == cost


def test_what_other_studies_taught_is_in_the_ledger(begin: Begin) -> None:
    curve = Curve(np.array([1.0, 2.0]), np.array([0.5, math.nan]))
    outcome = Outcome(Status.DIVERGED, 2.0, curve, planned_s=4.0)
    trial = PriorTrial({"optimizer.sgd.lr": 0.5, "epochs": 2}, outcome, same_times=True)
    begin(overrides=TIME_TO_TARGET).ledger.warm_started("other", [trial])
    (again,) = begin(overrides=TIME_TO_TARGET).ledger.prior_trials["other"]
    assert (again.params, again.same_times) == (trial.params, True)
    assert (again.outcome.status, again.outcome.planned_s) == (Status.DIVERGED, 4.0)
    np.testing.assert_array_equal(again.outcome.curve.metric, [0.5, math.nan])


def killed(message: str) -> StopReason:
    return StopReason.of(StopKind.PROCESS_DIED, message=message)


def test_trial_whose_process_dies_again_and_again_counts_as_failed(begin: Begin) -> None:
    controller = begin(overrides=("search.attempts=3",))
    first = propose(controller)
    for details in ("once", "twice", "thrice"):
        controller.died(first.trial_id, reason=killed(details), details=details)
        if details != "thrice":
            again = propose(controller)
            assert (again.trial_id, again.params) == (first.trial_id, first.params)
    record = controller.ledger.records[first.trial_id]
    assert record.status == Status.FAILED
    assert (record.stop_reason, record.runs[0].traceback) == (killed("thrice"), "thrice")
    assert propose(controller).trial_id == "t0001"


@pytest.mark.parametrize("is_blameless", [True, False])
def test_death_of_a_node_is_no_attempt_up_to_a_bound(begin: Begin, is_blameless: bool) -> None:
    controller = begin(overrides=("search.attempts=1",))
    for _ in range(MOST_BLAMELESS):
        spec = propose(controller)
        controller.died(spec.trial_id, reason=killed("gone"), details="its node", is_blameless=True)
    again = propose(controller)
    assert again.trial_id == spec.trial_id
    controller.died(again.trial_id, reason=killed("again"), details="", is_blameless=is_blameless)
    assert controller.ledger.records[spec.trial_id].stop_reason == killed("again")


def save(spec: TrialSpec, *, step: int) -> None:
    assert spec.checkpoint is not None
    header = Header(
        identity={},
        step=step,
        num_steps=100,
        recipe={},
        first_batch_size=1,
        started_at="",
        num_bytes=0,
    )
    payload = io.BytesIO()
    CheckpointStore(spec.checkpoint.place).write(head(header, payload), payload)


def test_attempts_count_anew_where_the_checkpoint_has_got_further(begin: Begin) -> None:
    controller = begin(overrides=("search.attempts=2",))
    spec = propose(controller)
    for step in range(10, 100, 10):
        save(spec, step=step)
        controller.died(spec.trial_id, reason=killed("again"), details="")
        assert propose(controller).trial_id == spec.trial_id
    controller.died(spec.trial_id, reason=killed("at 90 again"), details="")
    assert controller.ledger.records[spec.trial_id].stop_reason == killed("at 90 again")


def test_trials_are_saved_in_the_study_or_elsewhere_or_not(begin: Begin, tmp_path: Path) -> None:
    plan = propose(begin()).checkpoint
    assert plan is not None
    assert plan.place == str(tmp_path / "study" / "checkpoints" / "t0000.ckpt")
    assert plan.every_s == 60.0
    overrides = ("search.storage_path=memory://runs/", "search.checkpoint_every=5m")
    far = propose(begin(overrides=overrides)).checkpoint
    assert far is not None
    assert (far.place, far.every_s) == ("memory://runs/conducted/t0000.ckpt", 300.0)
    assert propose(begin(overrides=("search.checkpoint_every=null",))).checkpoint is None


def test_checkpoints_of_finished_trials_alone_are_cleared(begin: Begin, tmp_path: Path) -> None:
    storage = f"search.storage_path={tmp_path}/shared"
    controller = begin(overrides=(storage,))
    done, running = propose(controller), propose(controller)
    for spec in (done, running):
        save(spec, step=1)
    controller.finished(ended(done))
    begin(overrides=(storage,))
    left = [path.name for path in (tmp_path / "shared" / "conducted").iterdir()]
    assert left == [f"{running.trial_id}.ckpt"]


def test_policy_is_asked_about_each_evaluation_that_came_together(begin: Begin) -> None:
    controller = begin(overrides=("workload.mode=anytime",))
    controller.learning.policy = capped(controller)
    controller.finished(ended(propose(controller), time_s=2.0))
    slow = propose(controller)
    evaluations = tuple(
        make_evaluation(step=step, train_s=train_s, accuracy=0.5)
        for step, train_s in ((10, 1.5), (20, 2.5), (30, 3.5))
    )
    run = make_run(Status.CAPPED).model_copy(update={"evaluations": evaluations})
    reason = controller.evaluated(make_record(slow, slow.recipe, run, started_at=""))
    assert reason is not None and reason.figures["at_s"] == 2.5
    assert controller.ledger.records[slow.trial_id].runs[0].evaluations == evaluations


def test_trial_that_died_after_writing_its_record_is_not_lost(begin: Begin, tmp_path: Path) -> None:
    controller = begin()
    spec = propose(controller)
    write_trial_file(tmp_path / "study", ended(spec))
    controller.died(spec.trial_id, reason=killed("again"), details="once")
    assert controller.ledger.records[spec.trial_id].status == Status.REACHED


def test_interrupted_trial_has_no_record_and_is_resumed(begin: Begin, witness: Witness) -> None:
    controller = begin()
    spec = propose(controller)
    controller.interrupted(spec.trial_id, reason=StopReason())
    assert witness.seen[-1] == ("interrupted", spec.trial_id)
    assert propose(begin()).trial_id == spec.trial_id


def test_full_disk_ends_the_search(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = begin()
    spec = propose(controller)

    def refuse(*_: Any, **__: Any) -> None:
        raise StorageError("disk full")

    monkeypatch.setattr(controller.ledger, "_append", refuse)
    controller.finished(ended(spec))
    assert isinstance(controller.trials.failure, StorageError)
    assert controller.propose() is None
    assert spec.trial_id in controller.ledger.records


def test_weights_are_kept_where_the_study_asks_for_a_model(begin: Begin, tmp_path: Path) -> None:
    assert propose(begin()).keep is None
    assert not (tmp_path / "study" / "weights").exists()
    controller = begin(overrides=("tracking.log_model=best",))
    first, second = propose(controller), propose(controller)
    assert first.keep is not None and first.keep.at_most_s is None
    Path(first.keep.file).write_bytes(b"weights")
    controller.finished(ended(first, time_s=2.0))
    third = propose(controller)
    assert third.keep is not None and third.keep.at_most_s == 2.0
    controller.finished(ended(second, Status.MISSED))
    assert [p.name for p in (tmp_path / "study" / "weights").iterdir()] == [f"{first.trial_id}.pt"]
