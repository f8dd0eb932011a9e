"""One log of trials through Ray's adapters and through the simulator: the same decisions.

The simulator drives a policy in virtual time, and everything that passes between the two is written
down. Then the same events come to the controller as Ray's controller brings them, through searcher,
trial scheduler and callback, as records of trainings. Whatever the controller's policy answers must
be what the simulator's policy answered.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from ray.tune.schedulers import TrialScheduler

from tune_speed.core.records import Clocks, Evaluation, RunResult, Status, TrialRecord
from tune_speed.study.file import StudyFile, study_of
from tune_speed.study.yaml import parse_yaml
from tune_speed.training.trial import Allotment, TrialSpec, make_record
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.driver.cost_model import CostModel
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.policies import make_policy
from tune_speed.tuning.policy.base import Outcome, Policy, Problem, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.ray.liveness import end_report, running_report
from tune_speed.tuning.ray.tuner import (
    Adapter,
    _Callback,
    _Scheduler,
    _Searcher,
)
from tune_speed.tuning.simulation.simulate import run_policy

NUM_TRAIN = 1150
ANYWHERE: Any = SimpleNamespace(placement=lambda: {"node_ids": []})
STUDY = """
study: decided
workload: {dataset: {name: digits}, target: {value: 0.9}, mode: MODE, split: {validation_frac: 0.2}}
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0, log: true}}}
  epochs: {low: 4, high: 20}
  batch_size: {choices: [50, 100]}
search: {trials: TRIALS, policy: POLICY, concurrent: 3, seed: 3}
"""


class Digits:
    """Trainings made up from the recipe: an evaluation each epoch, best at a rate of 0.1."""

    def __init__(self, study: StudyFile) -> None:
        self.name, self.space = "digits", study.space
        self.target, self.mode = study.workload.target.value, study.workload.mode
        self._evaluations: dict[tuple[Any, ...], list[Evaluation]] = {}

    def evaluations(self, params: Mapping[str, Any]) -> list[Evaluation]:
        """Returns those of a run that went to its end, that of the untrained model first."""
        key = tuple(params.items())
        if key not in self._evaluations:
            every = range(params["epochs"] + 1)
            self._evaluations[key] = [self._evaluation(params, epoch) for epoch in every]
        return self._evaluations[key]

    def _evaluation(self, params: Mapping[str, Any], epoch: int) -> Evaluation:
        off = abs(math.log10(params["optimizer.sgd.lr"] / 0.1))
        accuracy = 0.1 + (0.86 - 0.2 * off) * (1 - math.exp(-epoch / 4))
        step = epoch * math.ceil(NUM_TRAIN / params["batch_size"])
        return Evaluation(
            step=step,
            samples=epoch * NUM_TRAIN,
            epoch=epoch,
            train_s=step * self.step_s(params),
            accuracy=accuracy,
            macro_f1=accuracy,
            loss=1.0,
            train_loss=1.0,
        )

    @staticmethod
    def step_s(params: Mapping[str, Any]) -> float:
        """Returns a step's time [s]: a power of two, so that times are exact."""
        return params["batch_size"] / 50 / 64

    def curve(self, params: Mapping[str, Any]) -> Curve:
        trained = self.evaluations(params)[1:]
        return Curve(
            np.array([e.train_s for e in trained]), np.array([e.accuracy for e in trained])
        )

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        return self.curve(params).end_s


class Event(NamedTuple):
    kind: str
    trial_id: str
    num_evaluations: int
    answer: Any


class Logged:
    def __init__(self, policy: Policy, costs: CostModel, benchmark: Digits) -> None:
        self._policy, self._costs, self._benchmark = policy, costs, benchmark
        self.events: list[Event] = []
        self._params: dict[str, dict[str, Any]] = {}
        self._num_evaluations: dict[str, int] = {}

    def ask(self) -> Proposal | None:
        proposal = self._policy.ask()
        if proposal is not None:
            self._params[proposal.trial_id] = proposal.params
            self._num_evaluations[proposal.trial_id] = 0
        self.events.append(Event("ask", "", 0, proposal))
        return proposal

    def report(self, trial_id: str, **report: Any) -> str | None:
        self._num_evaluations[trial_id] += 1
        params, index = self._params[trial_id], self._num_evaluations[trial_id]
        report["step"] = self._benchmark.evaluations(params)[index].step
        reason = self._policy.report(trial_id, **report)
        self.events.append(Event("report", trial_id, index, reason))
        return reason

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        params = self._params[trial_id]
        self._costs.learn(params, step_s=self._benchmark.step_s(params))
        planned_s = self._benchmark.curve(params).end_s
        self._policy.finish(trial_id, outcome._replace(planned_s=planned_s))
        status, num = outcome.status, len(outcome.curve.train_s)
        self.events.append(Event("finish", trial_id, num, (status, outcome.train_s)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


def study_with(policy: str, mode: str, *, trials: int = 2000) -> StudyFile:
    text = STUDY.replace("POLICY", policy).replace("MODE", mode).replace("TRIALS", str(trials))
    return study_of(parse_yaml(text, file="decided.yaml"))


@functools.cache
def simulated(policy_name: str, mode: str) -> list[Event]:
    study = study_with(policy_name, mode)
    benchmark = Digits(study)
    costs = CostModel(study.space, num_train=NUM_TRAIN)
    workload = study.workload
    target = SearchTarget(workload.target.value, workload.mode, workload.max_train_s)
    problem = Problem(study.space, target, costs, study.search.seed)
    policy = make_policy(study.search.policy, problem)
    logged = Logged(policy, costs, benchmark)
    # The first trial that is stopped ends late.
    budget_s = 60.0 if (policy_name, mode) == ("time_to_target", "fixed_length") else 25.0
    run_policy(logged, benchmark, num_workers=3, budget_s=budget_s)
    return logged.events


class Controller:
    def __init__(self, controller: SearchController, benchmark: Digits) -> None:
        adapter = Adapter(controller, ANYWHERE)
        self._controller, self._benchmark = controller, benchmark
        self._num_sent: dict[str, int] = {}
        self._told: list[str] = []
        self._searcher = _Searcher(adapter)
        self._scheduler = _Scheduler(adapter)
        self._callback = _Callback(adapter, self._scheduler, lambda: None)
        self._specs: dict[str, TrialSpec] = {}
        self._ray_ids: dict[str, str] = {}

    def answer(self, event: Event) -> Any:
        if event.kind == "ask":
            return self._ask(f"ray_{len(self._specs)}")
        if event.kind == "report":
            return self._report(event)
        return self._end(event)

    def runs_one(self) -> bool:
        proposal = self._ask(f"ray_{len(self._specs)}")
        if proposal is None:
            return False
        trial_id, evaluations = proposal.trial_id, self._benchmark.evaluations(proposal.params)
        for num in range(len(evaluations) - 1):
            if self._is_stopped(trial_id, num):
                return True
        last, target = evaluations[-1], self._benchmark.target
        answer = (Status.REACHED if last.accuracy >= target else Status.MISSED, last.train_s)
        self._end(Event("finish", trial_id, len(evaluations) - 1, answer))
        return True

    def _ask(self, ray_id: str) -> Proposal | None:
        config = self._searcher.suggest(ray_id)
        if not isinstance(config, dict):
            return None
        spec = TrialSpec.model_validate_json(config["spec"])
        self._specs[spec.trial_id] = spec
        self._ray_ids[spec.trial_id] = ray_id
        self._num_sent[spec.trial_id] = 0
        assert spec.proposal_reason == self._controller.ledger.proposals[spec.trial_id].reason
        return self._controller.ledger.proposals[spec.trial_id]

    def _report(self, event: Event) -> str | None:
        if event.num_evaluations == 1:  # The untrained model's comes first.
            assert not self._is_stopped(event.trial_id, 0)
        if self._is_stopped(event.trial_id, event.num_evaluations):
            return self._controller.ledger.records[event.trial_id].stop_reason
        return None

    def _is_stopped(self, trial_id: str, num_evaluations: int) -> bool:
        """Reports, and whether the process is told to stop; if so, it reports that it did."""
        record = self._record(trial_id, num_evaluations, Status.CAPPED)
        report = running_report(record, before=self._num_sent[trial_id])
        self._num_sent[trial_id] = len(record.runs[-1].evaluations)
        self._pass_on(trial_id, report)
        if trial_id not in self._told:
            return False
        stopped = end_report("stopped")
        self._callback.on_trial_result(trial=self._ray_trial(trial_id), result=stopped)
        return True

    def _pass_on(self, trial_id: str, report: dict[str, Any]) -> None:
        action = self._scheduler.on_trial_result(None, self._ray_trial(trial_id), report)
        assert action == TrialScheduler.CONTINUE
        self._callback.on_trial_result(trial=self._ray_trial(trial_id), result=report)

    def _end(self, event: Event) -> tuple[Status, float]:
        if event.trial_id not in self._controller.ledger.records:
            status, time_s = event.answer
            reached_s = time_s if status == Status.REACHED else None
            record = self._record(event.trial_id, event.num_evaluations, status, reached_s)
            report = end_report("finished", record)
            self._callback.on_trial_result(trial=self._ray_trial(event.trial_id), result=report)
        record = self._controller.ledger.records[event.trial_id]
        return record.status, record.time_to_target_s or record.runs[0].clocks.train_s

    def _ray_trial(self, trial_id: str) -> Any:
        told = SimpleNamespace(remote=lambda: self._told.append(trial_id))
        process = SimpleNamespace(stop_trial=told)
        state = SimpleNamespace(ray_actor=process)
        return SimpleNamespace(trial_id=self._ray_ids[trial_id], temporary_state=state)

    def _record(
        self, trial_id: str, num: int, status: Status, time_s: float | None = None
    ) -> TrialRecord:
        spec = self._specs[trial_id]
        seen = tuple(self._benchmark.evaluations(spec.params)[: num + 1])
        run = RunResult(
            status=status,
            seed=spec.seed,
            stop_reason="as the log says",
            time_to_target_s=time_s,
            evaluations=seen,
            clocks=Clocks(train_s=seen[-1].train_s),
            steps=seen[-1].step,
            step_time_ms=1000 * self._benchmark.step_s(spec.params) if num else None,
        )
        return make_record(spec, spec.recipe, run, started_at="")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "study") as ledger:
        ledger.begin({"workload_hash": "w"})
        yield ledger


@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
@pytest.mark.parametrize("policy", ["time_to_target", "vanilla"])
def test_ray_and_simulator_get_the_same_decisions(ledger: Ledger, policy: str, mode: str) -> None:
    study, log = study_with(policy, mode), simulated(policy, mode)
    controller = SearchController(study=study, ledger=ledger, allotment=Allotment(), observers=[])
    controller = Controller(controller, Digits(study))
    for event in log:
        assert controller.answer(event) == event.answer, event
    kinds = [event.kind for event in log]
    assert kinds.count("finish") > 10 and kinds.count("report") > 50


def test_log_has_stops_of_every_kind() -> None:
    stops = set()
    searches = [("time_to_target", mode) for mode in ("fixed_length", "anytime")]
    for policy, mode in searches:
        log = simulated(policy, mode)
        stops |= {event.answer.kind for event in log if event.kind == "report" and event.answer}
    assert stops >= {"slower", "below_rung"}


def searched(study: StudyFile, folder: Path, *, stops_after: int | None = None) -> list[Proposal]:
    """Returns what a search of one worker proposes; resumed once where it `stops_after` trials."""
    benchmark, sessions = Digits(study), [stops_after, NUM_TRIALS] if stops_after else [NUM_TRIALS]
    for num_trials in sessions:
        with Ledger(folder) as ledger:
            if ledger.header is None:
                ledger.begin({"workload_hash": "w"})
            controller = SearchController(
                study=study, ledger=ledger, allotment=Allotment(), observers=[]
            )
            driven = Controller(controller, benchmark)
            while controller.num_finished < num_trials and driven.runs_one():
                pass
            proposals = list(ledger.proposals.values())
    return proposals


NUM_TRIALS = 24


@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
def test_resumed_search_goes_on_as_one_that_never_stopped(tmp_path: Path, mode: str) -> None:
    study = study_with("time_to_target", mode, trials=NUM_TRIALS)
    whole = searched(study, tmp_path / "whole")
    assert len(whole) == NUM_TRIALS
    for stops_after in (15, 22):
        folder = tmp_path / f"resumed after {stops_after}"
        assert searched(study, folder, stops_after=stops_after) == whole
