"""One search from start to end: what admits it, opens its services, runs it, and what is left."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tune_speed.core.comparability import board_key
from tune_speed.core.errors import TuneSpeedError
from tune_speed.core.records import Recommended, TrialRecord
from tune_speed.core.text import counted
from tune_speed.reporting.leaderboard.ranking import Board, make_boards
from tune_speed.runtime.process import handlers_kept
from tune_speed.study.file import StudyFile
from tune_speed.study.range_ends import at_ends
from tune_speed.tracking.reader.step_times import find_step_times
from tune_speed.tracking.writer.tracker import DELIVERY_S, Tracker, Undelivered
from tune_speed.training.trial import Allotment
from tune_speed.tuning import admission
from tune_speed.tuning.admission import Admitted, Start
from tune_speed.tuning.best_model import log_best_model
from tune_speed.tuning.driver import control, steering
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.prior_trials import CarriedOver
from tune_speed.tuning.driver.requests import Answer
from tune_speed.tuning.driver.trials import Observer
from tune_speed.tuning.services import Services, connected, ends_at, plan_of, tags_of
from tune_speed.tuning.warm_start import describe, read_new

if TYPE_CHECKING:  # Ray takes a second to import, Optuna half of one.
    from tune_speed.tuning.driver.optuna_journal import OptunaJournal
    from tune_speed.tuning.ray.nodes import Nodes


class View(Observer, Protocol):
    """An observer that also draws."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def tick(self) -> None:
        """Redraws."""

    def note(self, line: str) -> None:
        """Shows a line that stays."""

    def replan(self, *, trials: int) -> None:
        """Takes another number of trials."""


class Screen(admission.Lines, Protocol):
    """Where people see what a search does."""

    def view(self, controller: SearchController) -> View: ...


class SearchResult(NamedTuple):
    """The outcome of a search."""

    records: tuple[TrialRecord, ...]
    """All finished trials of the study, earlier sessions included."""
    boards: tuple[Board, ...]
    """The leaderboard."""
    folder: Path
    """Where ledger and study file are."""
    uri: str
    """MLflow tracking URI."""
    undelivered: tuple[Undelivered, ...]
    """Finished trials that MLflow could not take; the ledger has them."""
    was_stopped: bool
    """Whether Ctrl-C ended the search."""
    model_line: str
    """What became of the fastest trial's model, in words; empty if none was asked for."""
    favourites: tuple[Recommended, ...] = ()
    """Configurations that met the target, what is recommended first."""
    why_ended: str | None = None
    """Why it ended before its budget was used up; None: it did not."""


def search(study: StudyFile, start: Start, screen: Screen) -> SearchResult:
    """Runs a search, or continues one, and returns its outcome.

    Everything that can be refused is refused before the first trial: names, data, disk, MLflow, Ray
    and its resources. Ctrl-C and SIGTERM stop the search; finished trials are kept, and `resume`
    runs the interrupted ones again.

    Raises: ConfigError, DataError, ServiceError, StorageError.
    """
    admitted = admission.admitted(study, start, screen)
    with ExitStack() as stack:
        held = stack.enter_context(_held(admitted, resume=start.resume))
        services = connected(admitted, held.ledger, start.address, screen.line)
        return _run(_begin(admitted, held, stack.enter_context(services), screen), screen)


class _Held(NamedTuple):
    """The ledger of a search, which no other driver can open."""

    ledger: Ledger
    driving: ExitStack
    """While it is open, people can steer the search."""


@contextmanager
def _held(admitted: Admitted, *, resume: bool) -> Iterator[_Held]:
    with Ledger(admitted.folder) as ledger, ExitStack() as driving:
        driving.enter_context(control.driving(admitted.folder))
        admission.admit(ledger, admitted, resume=resume)
        yield _Held(ledger, driving)


class _Begun(NamedTuple):
    """A search whose ledger has begun, and what writes down what it does."""

    admitted: Admitted
    study: StudyFile
    """With what was set by hand."""
    before: StudyFile
    """Without."""
    held: _Held
    services: Services
    tracker: Tracker
    journal: "OptunaJournal"
    carried: Mapping[str, CarriedOver]
    """What it learns from other studies since now, by their names."""


def _begin(admitted: Admitted, held: _Held, services: Services, screen: Screen) -> _Begun:
    from tune_speed.tuning.driver.optuna_journal import OptunaJournal
    from tune_speed.tuning.ray.concurrency import packed

    ledger, (client, nodes) = held.ledger, services
    before, packing = packed(admitted.study, nodes, folder=ledger.folder, on_line=screen.line)
    carried = read_new(before, ledger, admitted, machine=nodes.machine)
    search_id = admission.begin(
        ledger, before, workload_hash=admitted.workload_hash, device_type=nodes.device_type
    )
    for name, found in carried.items():
        ledger.warm_started(name, found.trials)
    study = steering.steered(before, ledger.answers.values())
    tracker = Tracker(
        client,
        study=study.name,
        study_tags=tags_of(before, admitted.workload_hash, packing),
        search_id=search_id,
        plan=plan_of(before),
        is_only=True,
    )
    tracker.reconcile(ledger.records)
    journal = OptunaJournal(study, ledger.folder, ledger.records)
    return _Begun(admitted, study, before, held, services, tracker, journal, carried)


def _run(begun: _Begun, screen: Screen) -> SearchResult:
    tracker, journal, ledger = begun.tracker, begun.journal, begun.held.ledger
    was_stopped = True
    try:
        running = _Running(begun, screen)
        was_stopped = running.run()
        favourites = running.controller.learning.favourites
        tracker.recommend(favourites)
        boards, range_ends = _boards_of(ledger, begun.study, favourites)
        tracker.ended(range_ends="; ".join(range_ends))
    finally:
        journal.close()
        for line in journal.news():  # Of its end, when no view is there to show it.
            screen.line(line)
        undelivered = tracker.close(timeout_s=DELIVERY_S, interrupted=was_stopped)
    return SearchResult(
        records=tuple(ledger.records.values()),
        boards=boards,
        folder=ledger.folder,
        uri=begun.admitted.uri,
        undelivered=undelivered,
        was_stopped=was_stopped,
        favourites=favourites,
        why_ended=running.controller.why_exhausted,
        model_line=_log_model(begun),
    )


class _Running:
    """The trials of a search, with what shows and steers them."""

    def __init__(self, begun: _Begun, screen: Screen) -> None:
        self._begun, self._tracker = begun, begun.tracker
        client, self._nodes = begun.services
        observers: list[Observer] = [begun.tracker, begun.journal]
        self.controller = SearchController(
            study=begun.study,
            ledger=begun.held.ledger,
            allotment=_allotment(begun.study, self._nodes),
            observers=observers,
            step_times=find_step_times(client, uri=begun.admitted.uri),
        )
        self._view = screen.view(self.controller)
        observers.append(self._view)
        self._track_steering()

    def run(self) -> bool:
        """Runs the trials; returns whether Ctrl-C ended the search. Raises: StorageError."""
        from tune_speed.tuning.ray import tuner
        from tune_speed.tuning.ray.health import ended_with_ray

        controller, view = self.controller, self._view
        with ExitStack() as stack:
            view.start()
            stack.callback(view.stop)
            # SIGTERM stops the search as Ctrl-C does. In another thread than the main one neither
            # does: Python delivers signals to the main thread, and only there can handlers be set.
            for number in stack.enter_context(handlers_kept(signal.SIGTERM)):
                signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            stack.enter_context(ended_with_ray())
            for line in self._notes():
                view.note(line)
            tuner.run_search(
                controller,
                self._nodes,
                on_tick=self._tick,
                on_stop=self._note_stop,
                steering=self._steering(),
            )
            # What is asked from here on is for a search that goes on.
            self._begun.held.driving.close()
            self._end()
        if controller.trials.failure is not None:
            raise controller.trials.failure
        return not controller.is_over()

    def _notes(self) -> Iterator[str]:
        begun = self._begun
        ledger = begun.held.ledger
        yield from (describe(name, *found) for name, found in begun.carried.items())
        if ledger.unproposed:
            names = ", ".join(sorted(ledger.unproposed))
            yield f"the ledger lacks the proposals of {names}: taken from records"
        yield from steering.standing(ledger.answers.values(), begun.before, begun.study)

    def _tick(self) -> None:
        for line in (*self._nodes.messages(), *self._tracker.news(), *self._begun.journal.news()):
            self._view.note(line)
        self._tracker.recommend(self.controller.learning.favourites)
        self._view.tick()

    def _note_stop(self) -> None:
        running = counted(len(self.controller.trials.running), "trial")
        self._view.note(f"stopping {running}, which --resume runs again …")

    def _steering(self) -> steering.Steering:
        from tune_speed.tuning.ray.concurrency import most_at_once

        before = self._begun.before
        return steering.Steering(
            self.controller,
            configured=steering.configured_in(before),
            room=lambda: most_at_once(before.search.resources, self._nodes),
            on_answer=self._answered,
        )

    def _answered(self, answer: Answer) -> None:
        self._view.note(answer.words)
        self._view.replan(trials=self.controller.study.search.trials)
        self._track_steering()

    def _track_steering(self) -> None:
        """Makes MLflow show what was steered, and what the search is to do now."""
        controller = self.controller
        answers, search = controller.ledger.answers.values(), controller.study.search
        if answers:
            tags = {
                "trials": str(search.trials),
                "concurrent": str(search.at_once),
                "ends_at": ends_at(controller.time_left_s()),
                "paused": "yes" if controller.is_paused else "",
            }
            self._tracker.steered(tags, [[answer.at, answer.words] for answer in answers])

    def _end(self) -> None:
        controller, view = self.controller, self._view
        if controller.trials.failure is None and not controller.trials.running:
            self._settle_times()
        if controller.study.tracking.log_model == "best":
            view.note("logging the fastest trial's model in MLflow, which takes some ten seconds")
        if (why := controller.end()) is not None:
            self._tracker.ended(why_ended=why)
            view.note(f"the search ends here: {why}")

    def _settle_times(self) -> None:
        """Times what could be first side by side, and re-clocks all trials."""
        from tune_speed.tuning.ray.rivals import time_rivals

        controller, view = self.controller, self._view
        is_over = controller.is_over()
        windows = time_rivals(controller, self._nodes, on_tick=self._tick) if is_over else ()
        if windows:
            kinds = counted(len({each.key for each in windows}), "kind")
            view.note(f"timed side by side what could be first: {kinds} of step")
        if changed := controller.reclock(windows):
            self._tracker.trials_reclocked(changed)
            view.note(f"re-clocked {counted(len(changed), 'trial')}: step times of all windows")


def _boards_of(
    ledger: Ledger, study: StudyFile, favourites: tuple[Recommended, ...]
) -> tuple[tuple[Board, ...], tuple[str, ...]]:
    """Returns the boards of a search, and the ranges at whose ends the best lie, in words."""
    best = {board_key(ledger.records[each.trial_id]): favourites for each in favourites[:1]}
    boards = make_boards(((None, each) for each in ledger.records.values()), favourites=best)
    params = [row.params for board in boards for row in board.rows]
    said = tuple(at_ends(study.space.parameters, params))
    more = {"range_ends": {study.name: said} if said else {}}
    return tuple(board.model_copy(update=more) for board in boards), said


def _log_model(begun: _Begun) -> str:
    if begun.study.tracking.log_model == "none":
        return ""
    ledger, parent_id = begun.held.ledger, begun.tracker.run_id
    records, folder = ledger.records.values(), ledger.folder
    try:
        return log_best_model(
            begun.services.client, records=records, folder=folder, parent_id=parent_id
        )
    except TuneSpeedError as error:  # The search is over and its results are saved.
        return f"no model is logged: {error}"
    except KeyboardInterrupt:
        return "no model is logged: it was stopped; --resume logs it"


def _allotment(study: StudyFile, nodes: "Nodes") -> Allotment:
    resources = study.search.resources
    return Allotment(
        device="cuda" if resources.gpu else "cpu",
        cpu_threads=max(1, int(resources.cpu)),
        cpu_fraction=min(1.0, resources.cpu / nodes.most_cpus()),
        memory_gib=resources.memory_gib,
        gpu_fraction=resources.gpu,
        max_cotenants=study.search.at_once - 1,
        longest_pause_s=study.search.longest_pause_s,
        price_per_hour=resources.price_per_hour,
    )
