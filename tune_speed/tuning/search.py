"""One search from start to end: checks, ledger, MLflow, Ray, and what is left when it is over."""

import importlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tune_speed.core.errors import ConfigError, Problem, StorageError, TuneSpeedError
from tune_speed.core.folders import studies_folder
from tune_speed.core.records import PROTOCOL_VERSION, StepTime, TrialRecord
from tune_speed.core.redact import redact
from tune_speed.core.targets import Target
from tune_speed.custom.spec import OwnTask
from tune_speed.data.cache import prepare
from tune_speed.data.split import make_splits
from tune_speed.reporting.leaderboard.ranking import Board, make_boards
from tune_speed.runtime.process import handlers_kept
from tune_speed.study.file import StudyFile
from tune_speed.study.settings import SearchConfig
from tune_speed.study.validation import most_devices
from tune_speed.tracking.reader.step_times import find_step_times
from tune_speed.tracking.store.store import open_store
from tune_speed.tracking.store.uri import tracking_uri
from tune_speed.tracking.writer.descriptions import SearchPlan
from tune_speed.tracking.writer.tracker import Tracker, Undelivered
from tune_speed.training.trial import Allotment
from tune_speed.training.workload import Workload
from tune_speed.tuning import precheck
from tune_speed.tuning.admission import admit, begin, pinned_device
from tune_speed.tuning.best_model import log_best_model
from tune_speed.tuning.concurrency import Packing
from tune_speed.tuning.driver.controller import Observer, SearchController
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.prior_trials import CarriedOver
from tune_speed.tuning.ray.job import refuse_throw_away
from tune_speed.tuning.ray.token import agree_on_token
from tune_speed.tuning.warm_start import describe, read_new

if TYPE_CHECKING:  # Ray takes a second to import.
    from tune_speed.tuning.ray.nodes import Nodes

MIN_FREE_MIB = 200
"""A study whose disk has less is not begun."""
DELIVERY_S = 60.0
"""Longest wait for MLflow at the end of a search; what it has not taken stays in the ledger."""


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


class SearchResult(NamedTuple):
    """What a search leaves for the user to read."""

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


class PreparedWorkload(NamedTuple):
    """What is known of a workload once its data are at hand."""

    workload_hash: str
    data_hash: str
    image_shape: tuple[int, ...]
    """(H, W, C)."""
    num_classes: int
    num_train: int


def search(
    study: StudyFile,
    *,
    address: str | None,
    resume: bool,
    download: bool,
    on_progress: Callable[[int, int], None],
    make_view: Callable[[SearchController], View],
    on_line: Callable[[str], None] = lambda _: None,
) -> SearchResult:
    """Runs a search, or goes on with one, and returns what it left.

    Everything that can be refused is refused before the first trial: names, data, disk, MLflow, Ray
    and its resources. Ctrl-C and SIGTERM stop the search; finished trials are kept, and `resume`
    runs the interrupted ones again.

    Raises: ConfigError, DataError, ServiceError, StorageError.
    """
    study = replace(study, workload=study.workload.located())
    folder = studies_folder() / study.name
    _refuse_full_disk(folder)
    uri = tracking_uri()
    refuse_throw_away(folder, uri)
    workload_hash, data = _prepared(study, download=download, on_progress=on_progress)
    with Ledger(folder) as ledger, _misfits_refused(study, data) as refuse_misfits:
        admit(ledger, study, workload_hash=workload_hash, resume=resume)
        pin = pinned_device(ledger)
        with _services(uri, address, study) as client, _nodes(study, address, pin) as nodes:
            refuse_misfits()
            nodes.settle()
            study, packing = _packed(study, nodes, folder=folder, on_line=on_line)
            carried = {} if data is None else _carried(study, ledger, uri, data, nodes)
            search_id = begin(
                ledger, study, workload_hash=workload_hash, device_type=nodes.device_type
            )
            for name, found in carried.items():
                ledger.warm_started(name, found.trials)
            tags = _tags(study, workload_hash, packing)
            tracker = Tracker(
                client,
                study=study.name,
                study_tags=tags,
                search_id=search_id,
                plan=_plan(study),
                is_only=True,
            )
            tracker.reconcile(ledger.records.values())
            was_stopped = True
            try:
                notes = [describe(name, *found) for name, found in carried.items()]
                step_times = find_step_times(client, uri=uri)
                was_stopped = _run(
                    study, workload_hash, ledger, tracker, make_view, notes, step_times, nodes
                )
            finally:
                undelivered = tracker.close(timeout_s=DELIVERY_S, interrupted=was_stopped)
        model_line = _log_model(study, client, ledger, parent_id=tracker.run_id)
        records = tuple(ledger.records.values())
        return SearchResult(
            records=records,
            boards=tuple(make_boards((None, record) for record in records)),
            folder=folder,
            uri=uri,
            undelivered=undelivered,
            was_stopped=was_stopped,
            model_line=model_line,
        )


def _log_model(study: StudyFile, client: Any, ledger: Ledger, *, parent_id: str) -> str:
    """Logs the fastest trial's model if the study asks for it; returns what came of it."""
    if study.tracking.log_model == "none":
        return ""
    try:
        return log_best_model(
            client, records=ledger.records.values(), folder=ledger.folder, parent_id=parent_id
        )
    except TuneSpeedError as error:  # The search is over; its results are safe.
        return f"no model is logged: {error}"
    except KeyboardInterrupt:
        return "no model is logged: it was stopped; --resume logs it"


def _plan(study: StudyFile) -> SearchPlan:
    """Returns what descriptions in MLflow say of the search."""
    is_command = Path(sys.argv[0]).name == "tune-speed"
    given = [a for a in sys.argv[1:] if a != "--resume"] if is_command else _given(study)
    return SearchPlan(
        study=study.name,
        workload=study.workload.model_dump(mode="json"),
        workload_name=study.workload.name,
        searched={each.name: each.text() for each in study.space.parameters},
        command=redact(shlex.join(["tune-speed", *given])),
    )


def _given(study: StudyFile) -> list[str]:
    """Returns what a command line would be given for a study that a call has begun."""
    loop = [] if study.loop is None else ["--train", f"FILE.py:{study.loop.name}"]
    return ["search", study.file, *loop]


@contextmanager
def _services(uri: str, address: str | None, study: StudyFile) -> Iterator[Any]:
    """Opens the MLflow store and joins or starts Ray, both at once; yields the store's client."""
    # Ray reads both as it is imported. It gives its processes 30 s to start by default, which are
    # not enough on a machine that is busy with something else.
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
    if address is not None:
        agree_on_token(address)
    from tune_speed.tuning.ray import cluster

    with ThreadPoolExecutor(max_workers=2) as pool:
        store = pool.submit(open_store, uri)
        # Imports of the first proposal, while Ray's own processes start.
        policies = pool.submit(importlib.import_module, "tune_speed.tuning.policies")
        devices = most_devices(study.space) if study.loop is None else 1
        cluster.connect(address, resources=study.search.resources, devices=devices)
        client = store.result()
        policies.result()
    try:
        yield client
    finally:
        cluster.disconnect()


def _prepared(
    study: StudyFile, *, download: bool, on_progress: Callable[[int, int], None]
) -> tuple[str, PreparedWorkload | None]:
    """Returns the task's hash, and what is known of the data; None: they are a function's own."""
    if isinstance(study.workload, OwnTask):
        return study.workload.identity(), None
    data = prepare_workload(study.workload, download=download, on_progress=on_progress)
    return data.workload_hash, data


def _carried(
    study: StudyFile, ledger: Ledger, uri: str, data: PreparedWorkload, nodes: "Nodes"
) -> dict[str, CarriedOver]:
    return read_new(study, ledger, uri=uri, data_hash=data.data_hash, machine=nodes.machine)


def _nodes(study: StudyFile, address: str | None, pin: str | None) -> "Nodes":
    from tune_speed.tuning.ray.nodes import Nodes

    seen = studies_folder() / study.name / "ledger.jsonl"
    return Nodes(study.search.resources, pin=pin, is_local=address is None, study=seen)


def _packed(
    study: StudyFile, nodes: "Nodes", *, folder: Path, on_line: Callable[[str], None]
) -> tuple[StudyFile, Packing | None]:
    from tune_speed.tuning.ray.concurrency import packed

    return packed(study, nodes, folder=folder, on_line=on_line)


def _run(
    study: StudyFile,
    workload_hash: str,
    ledger: Ledger,
    tracker: Tracker,
    make_view: Callable[[SearchController], View],
    notes: Sequence[str],
    step_times: Sequence[StepTime],
    nodes: "Nodes",
) -> bool:
    """Runs the trials; returns whether Ctrl-C ended the search. Raises: StorageError."""
    from tune_speed.tuning.ray import tuner
    from tune_speed.tuning.ray.health import ended_with_ray

    observers: list[Observer] = [tracker]
    controller = SearchController(
        study=study,
        workload_hash=workload_hash,
        ledger=ledger,
        allotment=_allotment(study, nodes),
        observers=observers,
        step_times=step_times,
    )
    view = make_view(controller)
    observers.append(view)
    with _drawn(view), _sigterm_as_ctrl_c(), ended_with_ray():
        for line in notes:
            view.note(line)
        tuner.run_search(controller, nodes, on_tick=lambda: _tick(view, nodes, tracker))
        if study.tracking.log_model == "best":
            view.note("logging the fastest trial's model in MLflow, which takes some ten seconds")
        if controller.why_exhausted is not None:
            view.note(f"the search ends here: {controller.why_exhausted}")
    if controller.failure is not None:
        raise controller.failure
    return not controller.is_over()


@contextmanager
def _misfits_refused(
    study: StudyFile, data: PreparedWorkload | None
) -> Iterator[Callable[[], None]]:
    """Tries networks and techniques meanwhile; yields what waits for the answer and raises it.

    Of a training function nothing can be tried.
    """
    if data is None:
        yield lambda: None
        return
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


def prepare_workload(
    workload: Workload, *, download: bool, on_progress: Callable[[int, int], None]
) -> PreparedWorkload:
    """Decodes the workload's data into this node's cache; returns what is known of it then.

    Raises: DataError; ConfigError if a guess that never looks at the image meets the target.
    """
    data = prepare(workload.dataset, download=download, on_progress=on_progress)
    splits = make_splits(data, workload.split)
    _refuse_guess(workload.target, splits.validation.labels, num_classes=splits.num_classes)
    return PreparedWorkload(
        workload_hash=workload.identity(data_hash=data.data_hash),
        data_hash=data.data_hash,
        image_shape=splits.train.pixels.shape[1:],
        num_classes=splits.num_classes,
        num_train=len(splits.train.labels),
    )


def _refuse_guess(target: Target, labels: npt.NDArray[np.int64], *, num_classes: int) -> None:
    """Raises: ConfigError if always guessing the most frequent class meets the target."""
    share = float(np.bincount(labels).max() / len(labels))
    macro_f1 = 2 * share / (1 + share) / num_classes
    guess = {"accuracy": share, "micro_f1": share, "macro_f1": macro_f1}.get(target.metric)
    if guess is None or target.value > guess:
        return
    problem = Problem(
        path="workload.target.value",
        must=f"must exceed {guess:.4f}, the {target.metric} of always guessing the most frequent"
        " class",
        given=f"{target.value:g}",
        hint="Such a target is met before training; choose a higher one.",
    )
    raise ConfigError(problems=(problem,))


def _tags(study: StudyFile, workload_hash: str, packing: Packing | None = None) -> dict[str, str]:
    search, target = study.search, study.workload.target
    has_sampler = search.policy == SearchConfig.model_fields["policy"].default
    return {
        "workload": study.workload.name,
        "workload_hash": workload_hash,
        "target": target.words,
        "mode": study.workload.mode,
        "trials": str(search.trials),
        "concurrent": str(search.at_once),
        **({"packing": packing.line()} if packing is not None else {}),
        "space_hash": study.space.hash,
        "searched": ", ".join(parameter.name for parameter in study.space.parameters),
        "policy": search.policy,
        **({"sampler": search.sampler} if has_sampler else {}),
        **({"warm_start": ", ".join(search.warm_start)} if search.warm_start else {}),
        "protocol_version": str(PROTOCOL_VERSION),
    }


def _tick(view: View, nodes: "Nodes", tracker: Tracker) -> None:
    for line in (*nodes.news(), *tracker.news()):
        view.note(line)
    view.tick()


def _allotment(study: StudyFile, nodes: "Nodes") -> Allotment:
    resources = study.search.resources
    return Allotment(
        device="cuda" if resources.gpu else "cpu",
        cpu_threads=max(1, int(resources.cpu)),
        cpu_fraction=min(1.0, resources.cpu / nodes.most_cpus()),
        memory_gib=resources.memory_gib,
        gpu_fraction=resources.gpu,
        max_cotenants=study.search.at_once - 1,
    )


def _refuse_full_disk(folder: Path) -> None:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free_mib = shutil.disk_usage(existing).free / 2**20
    if free_mib < MIN_FREE_MIB:
        raise StorageError(
            f"{existing} must have {MIN_FREE_MIB} MiB free for a study, but got {free_mib:.0f} MiB."
            " Free some space, or set TUNE_SPEED_STUDIES to another folder."
        )


@contextmanager
def _drawn(view: View) -> Iterator[None]:
    view.start()
    try:
        yield
    finally:
        view.stop()


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Makes SIGTERM stop the search as Ctrl-C does; in another thread than the main one, neither.

    Python gives signals to the main thread alone, and lets no other one say what they do.
    """
    with handlers_kept(signal.SIGTERM) as before:
        for number in before:
            signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        yield
