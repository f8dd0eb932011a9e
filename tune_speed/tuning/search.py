"""One search from start to end: checks, ledger, MLflow, Ray, and what is left when it is over."""

import importlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tune_speed.core.comparability import board_key
from tune_speed.core.errors import StorageError, TuneSpeedError
from tune_speed.core.folders import studies_folder
from tune_speed.core.prices import own_prices
from tune_speed.core.records import PROTOCOL_VERSION, Recommended, TrialRecord
from tune_speed.core.redact import redact
from tune_speed.core.text import counted
from tune_speed.core.words import StopReason
from tune_speed.reporting.leaderboard.ranking import Board, make_boards
from tune_speed.runtime.process import handlers_kept
from tune_speed.study.file import StudyFile
from tune_speed.study.range_ends import at_ends
from tune_speed.study.settings import SearchConfig
from tune_speed.study.validation import most_devices
from tune_speed.tracking.reader.step_times import find_step_times
from tune_speed.tracking.store.deadline import begun
from tune_speed.tracking.store.errors import errors_of
from tune_speed.tracking.store.store import open_store, refuse_deleted
from tune_speed.tracking.store.uri import tracking_uri
from tune_speed.tracking.writer.descriptions import SearchPlan
from tune_speed.tracking.writer.tracker import DELIVERY_S, Tracker, Undelivered
from tune_speed.training.trial import Allotment, utc_now
from tune_speed.training.workload import Workload
from tune_speed.tuning import admission, precheck
from tune_speed.tuning.admission import PreparedWorkload, prepare_workload
from tune_speed.tuning.best_model import log_best_model
from tune_speed.tuning.driver import control, steering
from tune_speed.tuning.driver.controller import Observer, SearchController
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.requests import Answer
from tune_speed.tuning.ray.health import Head
from tune_speed.tuning.ray.token import agree_on_token
from tune_speed.tuning.warm_start import describe, name_of, read_new

if TYPE_CHECKING:  # Ray takes a second to import, Optuna half of one.
    from tune_speed.tuning.driver.optuna_journal import OptunaJournal
    from tune_speed.tuning.ray.concurrency import Packing
    from tune_speed.tuning.ray.nodes import Nodes

MIN_FREE_MIB = 200
"""A study whose disk has less is not begun."""
# Longest wait for MLflow at the end of a search [s]; the ledger has what was not delivered.


class View(Observer, Protocol):
    """An observer that also draws."""

    def start(self) -> None:
        """Begins to draw."""

    def stop(self) -> None:
        """Ends drawing."""

    def tick(self) -> None:
        """Redraws."""

    def note(self, line: str) -> None:
        """Shows a line that stays."""

    def replan(self, *, trials: int) -> None:
        """Takes another number of trials."""


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
    why_ended: StopReason | None = None
    """Why it ended before its budget was used up; None: it did not."""


def search(
    study: StudyFile,
    *,
    address: str | None,
    resume: bool,
    from_mlflow: bool = False,
    download: bool,
    on_progress: Callable[[int, int], None],
    make_view: Callable[[SearchController], View],
    on_line: Callable[[str], None] = lambda _: None,
) -> SearchResult:
    """Runs a search, or continues one, and returns its outcome.

    Everything that can be refused is refused before the first trial: names, data, disk, MLflow, Ray
    and its resources. Ctrl-C and SIGTERM stop the search; finished trials are kept, and `resume`
    runs the interrupted ones again. With `from_mlflow`, a ledger that was lost is rebuilt first.

    Raises: ConfigError, DataError, ServiceError, StorageError.
    """
    study = replace(study, workload=study.workload.located())
    own_prices()  # Refuses a file that boards could not read.
    folder = studies_folder() / study.name
    _refuse_full_disk(folder)
    uri = tracking_uri()
    admission.refuse_throw_away(folder, uri)
    data = None
    if isinstance(study.workload, Workload):
        data = prepare_workload(study.workload, download=download, on_progress=on_progress)
        workload_hash = data.workload_hash
        for line in data.lines:
            on_line(line)
    else:  # A training function has data of its own.
        workload_hash = study.workload.identity()
    if from_mlflow:
        number = admission.rebuild(folder, study, workload_hash=workload_hash, uri=uri)
        on_line(f"rebuilt the ledger from MLflow: {counted(number, 'finished trial')}")
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(folder))
        driving = stack.enter_context(ExitStack())
        driving.enter_context(control.driving(folder))
        refuse_misfits = stack.enter_context(_misfits_refused(study, data))
        admission.admit(ledger, study, workload_hash=workload_hash, resume=resume)
        on_line("starting Ray …" if address is None else f"joining Ray at {address} …")
        with _services(uri, address, study, pin=admission.pinned_device(ledger)) as (client, nodes):
            from tune_speed.tuning.driver.optuna_journal import OptunaJournal
            from tune_speed.tuning.ray.concurrency import packed

            refuse_misfits()
            nodes.settle()
            study, packing = packed(study, nodes, folder=folder, on_line=on_line)
            carried = {}
            if data is not None:
                carried = read_new(
                    study, ledger, uri=uri, data_hash=data.data_hash, machine=nodes.machine
                )
            search_id = admission.begin(
                ledger, study, workload_hash=workload_hash, device_type=nodes.device_type
            )
            for name, found in carried.items():
                ledger.warm_started(name, found.trials)
            begun = study
            study = steering.steered(begun, ledger.answers.values())
            tracker = Tracker(
                client,
                study=study.name,
                study_tags=tags_of(begun, workload_hash, packing),
                search_id=search_id,
                plan=_plan(begun),
                is_only=True,
            )
            tracker.reconcile(ledger.records)
            journal = OptunaJournal(study, folder, ledger.records)
            was_stopped, observers = True, list[Observer]([tracker, journal])
            try:
                controller = SearchController(
                    study=study,
                    workload_hash=workload_hash,
                    ledger=ledger,
                    allotment=_allotment(study, nodes),
                    observers=observers,
                    step_times=find_step_times(client, uri=uri),
                )
                view = make_view(controller)
                observers.append(view)
                notes = [
                    *(describe(name, *found) for name, found in carried.items()),
                    *_notes_of(ledger),
                    *steering.standing(ledger.answers.values(), begun, study),
                ]
                steerer = _steered_by(controller, view, tracker, begun=begun, nodes=nodes)
                was_stopped = _run(
                    controller, view, notes, nodes, tracker, journal, steerer, driving
                )
                favourites = controller.favourites
                tracker.recommend(favourites)
                boards, range_ends = _boards_of(ledger, study, favourites)
                tracker.ended(range_ends="; ".join(range_ends))
            finally:
                journal.close()
                for line in journal.news():  # Of its end, when no view is there to show it.
                    on_line(line)
                undelivered = tracker.close(timeout_s=DELIVERY_S, interrupted=was_stopped)
        return SearchResult(
            records=tuple(ledger.records.values()),
            boards=boards,
            folder=folder,
            uri=uri,
            undelivered=undelivered,
            was_stopped=was_stopped,
            favourites=favourites,
            why_ended=controller.why_exhausted,
            model_line=_log_model(controller, client, parent_id=tracker.run_id),
        )


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


def _notes_of(ledger: Ledger) -> Iterator[str]:
    if ledger.unproposed:
        names = ", ".join(sorted(ledger.unproposed))
        yield f"the ledger lacks the proposals of {names}: taken from records"


def _steered_by(
    controller: SearchController, view: View, tracker: Tracker, *, begun: StudyFile, nodes: "Nodes"
) -> steering.Steering:
    """Returns what acts on requests; `begun` is the study before any of them."""
    from tune_speed.tuning.ray.concurrency import most_at_once

    def on_answer(answer: Answer) -> None:
        view.note(answer.words)
        view.replan(trials=controller.study.search.trials)
        _track_steering(tracker, controller)

    _track_steering(tracker, controller)
    return steering.Steering(
        controller,
        configured=steering.configured_in(begun),
        room=lambda: most_at_once(begun.search.resources, nodes),
        on_answer=on_answer,
    )


def _log_model(controller: SearchController, client: Any, *, parent_id: str) -> str:
    if controller.study.tracking.log_model == "none":
        return ""
    records, folder = controller.ledger.records.values(), controller.ledger.folder
    try:
        return log_best_model(client, records=records, folder=folder, parent_id=parent_id)
    except TuneSpeedError as error:  # The search is over and its results are saved.
        return f"no model is logged: {error}"
    except KeyboardInterrupt:
        return "no model is logged: it was stopped; --resume logs it"


def arguments_of_a_new_search() -> list[str]:
    """Returns this command's arguments without those that go on with a search."""
    return [each for each in sys.argv[1:] if each not in ("--resume", "--from-mlflow")]


def _plan(study: StudyFile) -> SearchPlan:
    if Path(sys.argv[0]).name == "tune-speed":
        arguments = arguments_of_a_new_search()
    else:  # A call from Python: what a command line would be.
        loop = [] if study.loop is None else ["--train", f"FILE.py:{study.loop.name}"]
        arguments = ["search", study.file, *loop]
    return SearchPlan(
        study=study.name,
        workload=study.workload.model_dump(mode="json"),
        workload_name=study.workload.label,
        searched={each.name: each.text() for each in study.space.parameters},
        command=redact(shlex.join(["tune-speed", *arguments])),
    )


@contextmanager
def _services(
    uri: str, address: str | None, study: StudyFile, *, pin: str | None
) -> "Iterator[tuple[Any, Nodes]]":
    """Opens the MLflow store and joins or starts Ray, both at once; yields client and nodes."""
    # Ray reads both variables on import. Its processes have 30 s to start by default, which is too
    # little on a busy machine.
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
    if address is not None:
        agree_on_token(address)
    seen = studies_folder() / study.name / "ledger.jsonl"
    resources, is_local = study.search.resources, address is None
    with ExitStack() as stack:
        if is_local:
            stack.callback(Head().end)  # It starts while Ray is imported here.
        from tune_speed.tuning.ray import cluster
        from tune_speed.tuning.ray.nodes import Nodes

        store = begun(partial(_store_of, study.name, uri))
        # Imports of the first proposal, while Ray's own processes start.
        policies = begun(partial(importlib.import_module, "tune_speed.tuning.policies"))
        devices = most_devices(study.space) if study.loop is None else 1
        if is_local:
            store()  # Where this refuses, Ray is not waited for.
        stack.enter_context(cluster.connected(address, resources=resources, devices=devices))
        client, _ = store(), policies()
        with Nodes(resources, pin=pin, is_local=is_local, study=seen) as nodes:
            yield client, nodes


def _store_of(study: str, uri: str) -> Any:
    client = open_store(uri)
    with errors_of(uri):
        refuse_deleted(client.get_experiment_by_name(study), uri)
    return client


def _track_steering(tracker: Tracker, controller: SearchController) -> None:
    """Makes MLflow show what was steered, and what the search is to do now."""
    answers, study = controller.ledger.answers.values(), controller.study
    if answers:
        tags = {
            "trials": str(study.search.trials),
            "concurrent": str(study.search.at_once),
            "ends_at": _ends_at(controller.time_left_s()),
            "paused": "yes" if controller.is_paused else "",
        }
        tracker.steered(tags, [[answer.at, answer.words] for answer in answers])


def _ends_at(left_s: float | None) -> str:
    if left_s is None:
        return ""
    return (datetime.fromisoformat(utc_now()) + timedelta(seconds=left_s)).isoformat()


def _run(
    controller: SearchController,
    view: View,
    notes: Sequence[str],
    nodes: "Nodes",
    tracker: Tracker,
    journal: "OptunaJournal",
    steerer: steering.Steering,
    driving: ExitStack,
) -> bool:
    """Runs the trials; returns whether Ctrl-C ended the search. Raises: StorageError."""
    from tune_speed.tuning.ray import tuner
    from tune_speed.tuning.ray.health import ended_with_ray

    def tick() -> None:
        for line in (*nodes.messages(), *tracker.news(), *journal.news()):
            view.note(line)
        tracker.recommend(controller.favourites)
        view.tick()

    def stopping() -> None:
        running = counted(len(controller.running), "trial")
        view.note(f"stopping {running}, which --resume runs again …")

    with ExitStack() as stack:
        view.start()
        stack.callback(view.stop)
        # SIGTERM stops the search as Ctrl-C does. In another thread than the main one neither does:
        # Python delivers signals to the main thread, and only there can handlers be set.
        for number in stack.enter_context(handlers_kept(signal.SIGTERM)):
            signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        stack.enter_context(ended_with_ray())
        for line in notes:
            view.note(line)
        tuner.run_search(controller, nodes, on_tick=tick, on_stop=stopping, steering=steerer)
        driving.close()  # What is asked from here on is for a search that goes on.
        if controller.failure is None and not controller.running:
            _settle_times(controller, view, nodes, tracker, tick)
        if controller.study.tracking.log_model == "best":
            view.note("logging the fastest trial's model in MLflow, which takes some ten seconds")
        if (why := controller.end()) is not None:
            tracker.ended(why_ended=str(why))
            view.note(f"the search ends here: {why}")
    if controller.failure is not None:
        raise controller.failure
    return not controller.is_over()


def _settle_times(
    controller: SearchController,
    view: View,
    nodes: "Nodes",
    tracker: Tracker,
    tick: Callable[[], None],
) -> None:
    """Times what could be first side by side, and re-clocks all trials."""
    from tune_speed.tuning.ray.rivals import time_rivals

    windows = time_rivals(controller, nodes, on_tick=tick) if controller.is_over() else ()
    if windows:
        kinds = counted(len({each.key for each in windows}), "kind")
        view.note(f"timed side by side what could be first: {kinds} of step")
    if changed := controller.reclock(windows):
        tracker.trials_reclocked(changed)
        view.note(f"re-clocked {counted(len(changed), 'trial')}: step times of all windows")


@contextmanager
def _misfits_refused(
    study: StudyFile, data: PreparedWorkload | None
) -> Iterator[Callable[[], None]]:
    """Checks networks and techniques in the background; yields what waits and raises misfits."""
    question = None
    if data is not None:
        question = precheck.start(
            study.space,
            image_shape=data.image_shape,
            num_classes=data.num_classes,
            num_train=data.num_train,
        )
    try:
        yield lambda: precheck.refuse_misfits(question, study.space, study.source)
    finally:
        precheck.cancel(question)


def tags_of(
    study: StudyFile, workload_hash: str, packing: "Packing | None" = None
) -> dict[str, str]:
    """Returns the tags of the search's run in MLflow."""
    search, target = study.search, study.workload.target
    has_sampler = search.policy == SearchConfig.model_fields["policy"].default
    return {
        "workload": study.workload.label,
        "workload_hash": workload_hash,
        "target": target.words,
        "mode": study.workload.mode,
        "trials": str(search.trials),
        "concurrent": str(search.at_once),
        "ends_at": _ends_at(search.time_budget_s),
        **({"packing": packing.line()} if packing is not None else {}),
        "space_hash": study.space.hash,
        "searched": ", ".join(parameter.name for parameter in study.space.parameters),
        "policy": search.policy,
        **({"sampler": search.sampler} if has_sampler else {}),
        **({"warm_start": ", ".join(map(name_of, search.warm_start))} if search.warm_start else {}),
        "protocol_version": str(PROTOCOL_VERSION),
    }


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


def _refuse_full_disk(folder: Path) -> None:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free_mib = shutil.disk_usage(existing).free / 2**20
    if free_mib < MIN_FREE_MIB:
        raise StorageError(
            f"{existing} must have {MIN_FREE_MIB} MiB free for a study, but got {free_mib:.0f} MiB."
            " Free some space, or set TUNE_SPEED_STUDIES to another folder."
        )
