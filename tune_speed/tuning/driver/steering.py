"""Acts on what people ask of a running search; what can be derived from the ledger is.

Each request is answered in the ledger before its effect. What follows from an answer (settings,
pause, trials to add, trials to stop) is read from there when a search is resumed, too.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from tune_speed.core.errors import ConfigError, TuneSpeedError
from tune_speed.core.records import TrialRecord, ended_as
from tune_speed.core.text import counted, duration
from tune_speed.study.file import StudyFile
from tune_speed.study.settings import parse_duration_s
from tune_speed.training.trial import utc_now
from tune_speed.tuning.driver import requests
from tune_speed.tuning.driver.control import Inbox
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.driver.trial_files import read_trial_file

LOOK_EVERY_S = 0.2


def configured_in(study: StudyFile) -> dict[str, Any]:
    """Returns the settings that can be changed, as the study's file or options have them."""
    return study.search.model_dump(include=set(requests.SETTINGS))


def steered(study: StudyFile, answers: Iterable[requests.Answer]) -> StudyFile:
    """Returns the study with what was set by hand, as long as its file says what it said then."""
    said, changed = configured_in(study), dict[str, Any]()
    for request, answer in requests.accepted(answers, requests.Set):
        for name, value in request.changes.items():
            if name in said and answer.configured.get(name) == said[name]:
                changed[name] = value
    return replace(study, search=study.search.model_copy(update=changed))


def standing(answers: Iterable[requests.Answer], begun: StudyFile, study: StudyFile) -> list[str]:
    """Returns what earlier steering means now, a line each; `begun` is the study without it."""
    said, now = configured_in(begun), configured_in(study)
    changed = [f"{name}={_shown(now[name])}" for name in now if now[name] != said[name]]
    lines = [f"set by hand before: {', '.join(changed)}"] if changed else []
    if requests.is_paused(answers):
        lines.append(f"paused: `tune-speed steer {study.name} go-on` lets trials begin")
    return lines


class Steering:
    """Answers a search's requests, those that an earlier session left first."""

    def __init__(
        self,
        controller: SearchController,
        *,
        configured: Mapping[str, Any],
        room: Callable[[], int],
        on_answer: Callable[[requests.Answer], None] = lambda answer: None,
    ) -> None:
        """`configured` is what the study's file says, `room` how many trials fit at a time."""
        self._controller, self._configured = controller, dict(configured)
        self._room, self._on_answer = room, on_answer
        self._inbox = Inbox(controller.ledger.folder)
        self._looked_s = controller.now()
        self.stops: list[str] = []
        """Trials that were stopped, and whose processes are to hear of it."""

    def look(self) -> None:
        """Acts on what is new. Called from the driver's event loop, as often as it likes."""
        controller, now_s = self._controller, self._controller.now()
        passed_s = now_s - self._looked_s
        if passed_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        if controller.is_paused and not controller.trials.running:
            controller.stood_s += passed_s
        for request in self._inbox.new():
            if request.id not in controller.ledger.answers and controller.trials.failure is None:
                self._act(request)

    def _act(self, request: requests.Request) -> None:
        try:
            answer = self._answer(request)
        except TuneSpeedError as error:
            answer = requests.Answer(request=request, at=utc_now(), refused=True, text=str(error))
        if not self._controller.steered(answer):
            return
        if isinstance(request, requests.Stop) and not answer.refused:
            self.stops.append(request.trial)
        self._on_answer(answer)

    def _answer(self, request: requests.Request) -> requests.Answer:
        if isinstance(request, requests.Try):
            return self._answer_try(request)
        if isinstance(request, requests.Set):
            return self._answer_set(request)
        if isinstance(request, requests.Stop):
            return requests.Answer(request=request, at=utc_now(), text=self._stopping(request))
        is_paused, running = self._controller.is_paused, len(self._controller.trials.running)
        if isinstance(request, requests.Pause):
            text = "no trial begins until `go-on`"
            text += f"; {counted(running, 'trial')} that run go on to their ends" * bool(running)
            text = "paused already" if is_paused else text
        else:
            text = "trials begin again" if is_paused else "not paused"
        return requests.Answer(request=request, at=utc_now(), text=text)

    def _answer_try(self, request: requests.Try) -> requests.Answer:
        controller = self._controller
        search, waiting = controller.study.search, len(controller.learning.wanted())
        left = search.trials - controller.num_begun - waiting
        if left <= 0:
            raise ConfigError(
                f"a trial must be left to add one, but all {search.trials} have begun or are asked"
                f" for. Set trials={search.trials - left + 1} first."
            )
        best = next(iter(controller.learning.favourites), None)
        base = {} if best is None else controller.ledger.proposals[best.trial_id].params
        point = requests.completed(controller.study.space, request.params, base)
        rest = "; what it leaves out is the search's choice, as no trial met the target yet"
        if best is not None:
            rest = f"; what it leaves out is as in {best.trial_id}, which is recommended"
        after = f", after {waiting} asked for before" if waiting else ""
        text = f"the next trial to begin{after}{rest}"
        return requests.Answer(request=request, at=utc_now(), text=text, point=point)

    def _stopping(self, request: requests.Stop) -> str:
        controller, trial_id = self._controller, request.trial
        if trial_id in controller.trials.running:
            if read_trial_file(controller.ledger.folder, trial_id) is not None:
                raise ConfigError(f"{trial_id} must run to be stopped, but has just ended.")
            return f"{trial_id} ends as it is"
        running = f"running: {', '.join(controller.trials.running) or 'none'}"
        record: TrialRecord | None = None
        if trial_id in controller.ledger.records:
            record = controller.ledger.records[trial_id]
        why = "there is no such trial" if record is None else f"it has ended: {ended_as(record)}"
        if trial_id in controller.ledger.proposals and record is None:
            why = "it waits to be run again"
        raise ConfigError(f"{trial_id} must run to be stopped, but {why} ({running}).")

    def _answer_set(self, request: requests.Set) -> requests.Answer:
        controller, changes = self._controller, request.changes
        requests.refuse_target(changes)
        before = configured_in(controller.study)
        if "trials" in changes and changes["trials"] < controller.num_begun:
            must = f"must be at least {controller.num_begun}, as so many have begun"
            raise ConfigError.of("trials", must, given=str(changes["trials"]))
        if "concurrent" in changes and changes["concurrent"] > before["concurrent"]:
            self._check_room(changes["concurrent"])
        if (budget := changes.get("time_budget")) is not None:
            self._check_time(parse_duration_s(budget))
        before_text = (f"{name} was {_shown(before[name])}" for name in changes)
        configured = {name: self._configured[name] for name in changes}
        return requests.Answer(
            request=request, at=utc_now(), text="; ".join(before_text), configured=configured
        )

    def _check_room(self, concurrent: int) -> None:
        room, resources = self._room(), self._controller.study.search.resources
        if concurrent <= room:
            return
        must = f"must be at most {room}: so many trials have room here, with {resources.words} each"
        raise ConfigError.of("concurrent", must, given=str(concurrent))

    def _check_time(self, budget_s: float) -> None:
        passed_s = self._controller.elapsed_s - self._controller.stood_s
        if budget_s <= passed_s:
            must = f"must be more than the {duration(passed_s)} that the search has run"
            hint = "Ctrl-C, or SIGTERM, ends a search at once."
            raise ConfigError.of("time_budget", must, given=duration(budget_s), hint=hint)


def _shown(value: Any) -> str:
    return "not limited" if value is None else f"{value}"
