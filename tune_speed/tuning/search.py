"""One search from start to end: what admits it, opens its services, runs it, and what is left."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tune_speed.core.comparability import board_key
from tune_speed.core.errors import TuneSpeedError
from tune_speed.core.records import Recommended, TrialRecord
from tune_speed.core.text import counted, switch
from tune_speed.core.words import StopReason
from tune_speed.reporting.leaderboard.ranking import Board, make_boards
from tune_speed.reporting.live import LiveView
from tune_speed.runtime.process import handlers_kept
from tune_speed.study.file import StudyFile
from tune_speed.study.parameter import at_ends
from tune_speed.tracking.reader.queries import find_step_times
from tune_speed.tracking.store.store import Store
from tune_speed.tracking.writer.tracker import DELIVERY_S, Tracker, Undelivered
from tune_speed.training.trial import Allotment
from tune_speed.tuning import admission
from tune_speed.tuning.admission import Admitted, Start
from tune_speed.tuning.best_model import log_best_model
from tune_speed.tuning.driver import control, steering
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.requests import Answer
from tune_speed.tuning.driver.trials import Observer
from tune_speed.tuning.services import connected, describe, ends_at, plan_of, read_new, tags_of

if TYPE_CHECKING:  # Ray takes a second to import.
    from tune_speed.tuning.ray.nodes import Nodes


class Screen(Protocol):
    """Where people see what a search does."""

    def line(self, text: str) -> None: ...
    def decoded(self, done: int, total: int) -> None: ...
    def view(self, controller: SearchController) -> LiveView: ...


class SearchResult(NamedTuple):
    """The outcome of a search."""

    records: tuple[TrialRecord, ...]
    boards: tuple[Board, ...]
    folder: Path
    store: Store
    undelivered: tuple[Undelivered, ...]
    """Finished trials that MLflow could not take; the ledger has them."""
    was_stopped: bool
    model_line: str
    """What became of the fastest trial's model, in words; empty if none was asked for."""
    favourites: tuple[Recommended, ...] = ()
    """Configurations that met the target, what is recommended first."""
    why_ended: StopReason | None = None
    """Why it ended before its budget was used up; None: it did not."""


def search(study: StudyFile, start: Start, screen: Screen) -> SearchResult:
    """Runs a search, or continues one, and returns its outcome.

    Everything that can be refused is refused before the first trial. Ctrl-C and SIGTERM stop it;
    finished trials are kept. Raises: ConfigError, DataError, ServiceError, StorageError.
    """
    admitted = admission.admitted(study, start, screen.line, screen.decoded)
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(admitted.folder))
        driving = stack.enter_context(ExitStack())
        driving.enter_context(control.driving(admitted.folder))
        admission.admit(ledger, admitted, resume=start.resume)
        opening = connected(admitted, ledger, start.address, screen.line)
        nodes = stack.enter_context(opening)
        return _Search(admitted, ledger, nodes, screen).run(driving)


class _Search:
    """A search whose ledger has begun, with what writes down, shows and steers what it does."""

    def __init__(self, admitted: Admitted, ledger: Ledger, nodes: "Nodes", screen: Screen) -> None:
        from tune_speed.tuning.driver.optuna_journal import OptunaJournal
        from tune_speed.tuning.ray.concurrency import packed

        self._ledger, self._screen, self._store = ledger, screen, admitted.store
        self._nodes = nodes
        study, packing = packed(
            admitted.study, self._nodes, folder=ledger.folder, on_line=screen.line
        )
        carried = read_new(study, ledger, admitted, machine=self._nodes.machine)
        search_id = admission.begin(
            ledger, study, admitted.workload_hash, device_type=self._nodes.device_type
        )
        for name, found in carried.items():
            ledger.warm_started(name, found.trials)
        self._configured = steering.configured_in(study)
        self._study = steering.steered(study, ledger.answers.values())
        self._notes = [describe(name, *found) for name, found in carried.items()]
        if ledger.unproposed:
            names = ", ".join(sorted(ledger.unproposed))
            self._notes.append(f"the ledger lacks the proposals of {names}: taken from records")
        self._notes += steering.standing(ledger.answers.values(), study, self._study)
        self._tracker = Tracker(
            self._store,
            study=study.name,
            study_tags=tags_of(study, admitted.workload_hash, packing),
            search_id=search_id,
            plan=plan_of(study),
            is_only=True,
        )
        self._tracker.reconcile(ledger.records)
        self._journal = OptunaJournal(self._study, ledger.folder, ledger.records)

    def run(self, driving: ExitStack) -> SearchResult:
        """Runs the search until no trial is left, or Ctrl-C; `driving` ends with the trials."""
        tracker, records, was_stopped = self._tracker, self._ledger.records, True
        try:
            controller = self._begin()
            was_stopped = self._run_trials(driving)
            favourites = controller.learning.favourites
            tracker.recommend(favourites)
            boards, range_ends = _boards_of(self._ledger, self._study, favourites)
            tracker.ended(range_ends="; ".join(range_ends))
        finally:
            self._journal.close()
            for line in self._journal.news():  # Of its end, when no view is there to show it.
                self._screen.line(line)
            undelivered = tracker.close(timeout_s=DELIVERY_S, interrupted=was_stopped)
        return SearchResult(
            records=tuple(records.values()),
            boards=boards,
            folder=self._ledger.folder,
            store=self._store,
            undelivered=undelivered,
            was_stopped=was_stopped,
            favourites=favourites,
            why_ended=controller.why_exhausted,
            model_line=self._log_model(),
        )

    def _begin(self) -> SearchController:
        observers: list[Observer] = [self._tracker, self._journal]
        self._controller = SearchController(
            study=self._study,
            ledger=self._ledger,
            allotment=_allotment(self._study, self._nodes),
            observers=observers,
            step_times=find_step_times(self._store),
        )
        self._view = self._screen.view(self._controller)
        observers.append(self._view)
        self._track_steering()
        return self._controller

    def _run_trials(self, driving: ExitStack) -> bool:
        from tune_speed.tuning.ray import tuner
        from tune_speed.tuning.ray.health import ended_with_ray

        controller, view = self._controller, self._view
        with ExitStack() as stack:
            view.start()
            stack.callback(view.stop)
            # SIGTERM stops the search as Ctrl-C does. In another thread than the main one neither
            # does: Python delivers signals to the main thread, and only there can handlers be set.
            for number in stack.enter_context(handlers_kept(signal.SIGTERM)):
                signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            stack.enter_context(ended_with_ray())
            for line in self._notes:
                view.note(line)
            tuner.run_search(
                controller,
                self._nodes,
                on_tick=self._tick,
                on_stop=lambda: view.note(
                    f"stopping {counted(len(controller.trials.running), 'trial')},"
                    f" which {switch('resume')} runs again …"
                ),
                steering=self._steering(),
            )
            driving.close()  # What is asked from here on is for a search that goes on.
            self._end()
        if controller.trials.failure is not None:
            raise controller.trials.failure
        return not controller.is_over()

    def _tick(self) -> None:
        for line in (*self._nodes.messages(), *self._tracker.news(), *self._journal.news()):
            self._view.note(line)
        self._tracker.recommend(self._controller.learning.favourites)
        self._view.tick()

    def _steering(self) -> steering.Steering:
        from tune_speed.tuning.ray.concurrency import most_at_once

        resources = self._study.search.resources
        return steering.Steering(
            self._controller,
            configured=self._configured,
            room=lambda: most_at_once(resources, self._nodes),
            on_answer=self._answered,
        )

    def _answered(self, answer: Answer) -> None:
        self._view.note(answer.words)
        self._view.replan(trials=self._controller.study.search.trials)
        self._track_steering()

    def _track_steering(self) -> None:
        controller = self._controller
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
        controller, view = self._controller, self._view
        if controller.trials.failure is None and not controller.trials.running:
            self._settle_times()
        if controller.study.tracking.log_model == "best":
            view.note("logging the fastest trial's model in MLflow, which takes some ten seconds")
        if (why := controller.end()) is not None:
            self._tracker.ended(why_ended=str(why))
            view.note(f"the search ends here: {why}")

    def _settle_times(self) -> None:
        from tune_speed.tuning.ray.rivals import time_rivals

        controller, view = self._controller, self._view
        is_over = controller.is_over()
        windows = time_rivals(controller, self._nodes, on_tick=self._tick) if is_over else ()
        if windows:
            kinds = counted(len({each.key for each in windows}), "kind")
            view.note(f"timed side by side what could be first: {kinds} of step")
        if changed := controller.reclock(windows):
            self._tracker.trials_reclocked(changed)
            view.note(f"re-clocked {counted(len(changed), 'trial')}: step times of all windows")

    def _log_model(self) -> str:
        if self._study.tracking.log_model == "none":
            return ""
        records, folder = self._ledger.records.values(), self._ledger.folder
        run_id = self._tracker.run_id
        try:
            return log_best_model(self._store, records=records, folder=folder, parent_id=run_id)
        except TuneSpeedError as error:  # The search is over and its results are saved.
            return f"no model is logged: {error}"
        except KeyboardInterrupt:
            return f"no model is logged: it was stopped; {switch('resume')} logs it"


def _boards_of(
    ledger: Ledger, study: StudyFile, favourites: tuple[Recommended, ...]
) -> tuple[tuple[Board, ...], tuple[str, ...]]:
    best = {board_key(ledger.records[each.trial_id]): favourites for each in favourites[:1]}
    boards = make_boards(((None, each) for each in ledger.records.values()), favourites=best)
    params = [row.params for board in boards for row in board.rows]
    said = tuple(at_ends(study.space.parameters, params))
    more = {"range_ends": {study.name: said} if said else {}}
    return tuple(board.model_copy(update=more) for board in boards), said


def _allotment(study: StudyFile, nodes: "Nodes") -> Allotment:
    from tune_speed.tuning.ray.cluster import node_cpus

    resources = study.search.resources
    return Allotment(
        device="cuda" if resources.gpu else "cpu",
        cpu_threads=max(1, int(resources.cpu)),
        cpu_fraction=min(1.0, resources.cpu / max(1.0, node_cpus(nodes.allowed))),
        memory_gib=resources.memory_gib,
        gpu_fraction=resources.gpu,
        max_cotenants=study.search.at_once - 1,
        longest_pause_s=study.search.longest_pause_s,
        price_per_hour=resources.price_per_hour,
    )
