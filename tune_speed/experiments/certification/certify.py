"""Runs finalists of a study again: fresh seeds, the test part, the whole device, the leader too.

Each run is on disk before the next begins, so that the same command continues where it stopped.
"""

import json
import math
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tune_speed.core.comparability import board_key, final_goodness, final_metric, target_of
from tune_speed.core.errors import ConfigError, ServiceError, refuse_link
from tune_speed.core.event_log import latest_log
from tune_speed.core.records import PROTOCOL_VERSION, Status, Timing, TrialRecord
from tune_speed.core.redact import redact
from tune_speed.core.stats import RunStatistics
from tune_speed.core.text import counted
from tune_speed.core.words import joined
from tune_speed.custom.shipping import Loop
from tune_speed.custom.spec import OwnRecipe, spec_type, task_of
from tune_speed.experiments.certification import schedule as schedules
from tune_speed.experiments.certification.assemble import Certification, certified_record
from tune_speed.experiments.certification.kept_models import keep_of
from tune_speed.experiments.session import left_text, stoppable
from tune_speed.reporting.trials.recipe_export import recipe_that_ran
from tune_speed.runtime.atomic_file import replace_text
from tune_speed.runtime.process import busy_text
from tune_speed.runtime.turnstile import file_name
from tune_speed.study.schema import check_study_name
from tune_speed.study.settings import CertifyConfig, ResourceConfig
from tune_speed.tracking.reader.leaders import find_leaders
from tune_speed.tracking.reader.queries import Query, find_trials
from tune_speed.tracking.reader.tables import TrackedTrial
from tune_speed.tracking.store.store import Store
from tune_speed.tracking.writer.tracker import Undelivered, deliver
from tune_speed.training.trial import Allotment, SpecBase
from tune_speed.tuning.provenance import Surroundings
from tune_speed.tuning.ray.exclusive import ExclusiveDevice, Stopped

# A run that was not alone on the device is repeated, so often in all. If they were runs of
# tune-speed, that is an error; strangers cannot be told to leave: the last counts, as disturbed.
MAX_TURNS = 3


class CertifyResult(NamedTuple):
    """The outcome of a certification."""

    records: tuple[TrialRecord, ...]
    """Certified records, best first; empty if it was stopped."""
    finalists: tuple[TrackedTrial, ...]
    """Recipes that were certified, the best estimate first."""
    estimates: tuple[TrialRecord, ...]
    """All trials of the study that may be compared with these."""
    ranks: tuple[schedules.FinalRank, ...]
    folder: Path
    undelivered: tuple[Undelivered, ...]
    was_stopped: bool


def certify(
    study: str,
    *,
    config: CertifyConfig,
    folder: Path,
    device: str | None,
    address: str | None,
    again: bool,
    on_line: Callable[[str], None],
    anew_if_changed: bool = False,
    loop: Loop | None = None,
    keeps_models: bool = False,
) -> CertifyResult:
    """`folder` is that of the study's files, `device` part of the device's name.

    `anew_if_changed` starts from scratch where finalists, leader or numbers are not those that were
    begun, instead of raising an error. `loop` is the study's training function; None: recipes.

    Raises: ConfigError, DataError, ServiceError, StorageError.
    """
    check_study_name(study)
    store = Store()
    favourites = find_leaders(store, Query(study=study), top=1).favourites
    estimates = find_estimates(store, study, device)
    best = favourites.get(board_key(estimates[0].record), [])
    finalists = choose_finalists(estimates, config.top, [each.trial_id for each in best])
    first = finalists[0].record
    refuse_other_loop(study, first, loop)
    leader = find_leader(store, finalists)
    header = {
        **config.model_dump(),
        "finalists": [each.name for each in finalists],
        "leader": leader.name if leader else None,
        "workload_hash": first.workload_hash,
        "protocol_version": PROTOCOL_VERSION,
    }
    path = latest_log(folder, "certify", again=again)
    if anew_if_changed and not again:
        with schedules.CertifyLedger(path) as ledger:
            path = latest_log(folder, "certify", again=bool(ledger.differences(header)))
    with schedules.CertifyLedger(path) as ledger:
        ledger.begin(header)
        schedule = schedules.CertificationSchedule(
            [each.name for each in finalists],
            leader=leader.name if leader else None,
            plan=config,
            seed_base=f"{study}/{path.stem}",
            miss_s=first.miss_s,
            target=target_of(first.workload),
        )
        session = _Session(ledger, schedule, [*finalists, *([leader] if leader else [])], on_line)
        session.keeps_models = keeps_models
        on_line(_outlook(schedule, finalists))
        is_here = address is None and first.device.kind == "cpu" and not session.is_complete
        if busy := busy_text(first.cpu_threads) if is_here else "":
            on_line(f"warning: {busy}")
        was_stopped = not session.is_complete and session.run(address, loop)
        ranks = schedule.ranks()
        if was_stopped:
            return CertifyResult((), tuple(finalists), (), ranks, folder, (), True)
        done = Certification(
            finalists=session.everyone,
            runs=ledger.records,
            ranks=ranks,
            surroundings={name: session.surroundings(name) for name in session.everyone},
            uri=str(store),
            command=redact(shlex.join(["tune-speed", *sys.argv[1:]])),
            estimates=tuple(each.record for each in estimates),
            chosen_by=_chosen_by(config.top, estimates, by_expected=bool(best)),
        )
        records = tuple(certified_record(placed, done) for placed in ranks)
        _save(folder / "certified", records, done)
    # The leader has a certified record already; here it only ran next to the others.
    own = tuple(r for r in records if f"{r.study}/{r.trial_id}" != (leader and leader.name))
    undelivered = deliver(store, own, study=study, search_id=path.stem, parent_kind="certification")
    found = (records, tuple(finalists), done.estimates, ranks, folder)
    return CertifyResult(*found, undelivered, False)


def _chosen_by(top: int, estimates: Sequence[TrackedTrial], *, by_expected: bool) -> str:
    is_best = target_of(estimates[0].record.workload).seeks_best
    which = ("best" if is_best else "fastest") + f" of {len(estimates)} estimates of one seed each"
    if by_expected:
        which = "best expected ends" if is_best else "least expected times with restarts"
        which = f"of the {which}, of {counted(len(estimates), 'trial')}"
    return f"one of the {top} {which}"


def _outlook(schedule: schedules.CertificationSchedule, finalists: list[TrackedTrial]) -> str:
    left = left_text(schedule.most_runs_left, [each.record for each in finalists], most=True)
    leader = f" beside {schedule.leader}" if schedule.leader else ""
    return f"{counted(len(finalists), 'finalist')}{leader}: {left}"


class _Session:
    def __init__(
        self,
        ledger: schedules.CertifyLedger,
        schedule: schedules.CertificationSchedule,
        everyone: list[TrackedTrial],
        on_line: Callable[[str], None],
    ) -> None:
        self._ledger, self._schedule, self._on_line = ledger, schedule, on_line
        self.everyone = {each.name: each for each in everyone}
        self.keeps_models = False
        for turn, record in ledger.records.items():
            schedule.add(turn, record.runs[0])
        if ledger.records:
            on_line(f"going on after {counted(len(ledger.records), 'run')} in {ledger.path}")

    @property
    def is_complete(self) -> bool:
        return self._schedule.next() is None and self._ledger.last_facts.keys() >= set(
            self.everyone
        )

    def surroundings(self, name: str) -> tuple[Surroundings, Surroundings]:
        facts = self._ledger.first_facts[name], self._ledger.last_facts[name]
        before, after = (Surroundings.model_validate(each) for each in facts)
        return before, after

    def run(self, address: str | None, loop: Loop | None) -> bool:
        from tune_speed.tuning.ray import cluster

        first = next(iter(self.everyone.values())).record
        is_gpu = first.device.kind == "cuda"
        most = max(each.record.recipe.get("devices", 1) for each in self.everyone.values())
        resources = ResourceConfig(cpu=1, gpu=float(is_gpu))
        with (
            cluster.connected(address, resources=resources),
            stoppable(Stopped, signal.SIGINT, signal.SIGTERM) as stop,
            closing(
                ExclusiveDevice(
                    gpus=most if is_gpu else 0,
                    cpu_threads=first.cpu_threads,
                    node_ids=_nodes_like(first, address),
                    on_line=self._on_line,
                    is_stopped=stop.came,
                    loop=loop,
                )
            ) as device,
        ):
            self._describe(device, is_last=False)
            while (turn := self._schedule.next()) is not None:
                self._take_turn(turn, device)
            self._describe(device, is_last=True)
        return stop.was_stopped

    def _describe(self, device: ExclusiveDevice, *, is_last: bool) -> None:
        for name, each in self.everyone.items():
            facts = Surroundings.model_validate_json(device.describe(_spec(each.record, seed=0)))
            if facts.machine.device != str(each.record.device):
                raise ConfigError(
                    "a study must be certified on the device of its trials,"
                    f" {each.record.device}, but this is {facts.machine.device}. Certify there, or"
                    " search here first."
                )
            self._ledger.described(name, facts.model_dump(mode="json"), is_last=is_last)

    def _take_turn(self, turn: schedules.Turn, device: ExclusiveDevice) -> None:
        for tries_left in reversed(range(MAX_TURNS)):
            spec = _spec(self.everyone[turn.name].record, seed=turn.seed)
            if self.keeps_models:
                keep = keep_of(self._ledger.path, turn.name)
                spec = spec.model_copy(update={"keep": keep})
            record = device.run(spec)
            run = record.runs[0]
            if run.timing == Timing.EXCLUSIVE or run.status == Status.FAILED:
                break
            others = ", ".join(run.cotenants) or joined(run.note) or "unknown"
            if tries_left or run.timing == Timing.DISTURBED:
                so = "runs again" if tries_left else "counts as disturbed"
                self._on_line(f"{turn.name} {so}: it was not alone on the device ({others})")
        if run.timing == Timing.SHARED and run.status != Status.FAILED:
            raise ServiceError(
                "a certified run must have its device to itself, but others were there in"
                f" {MAX_TURNS} runs: {others}. Let them end, and give the same command"
                " again: nothing that ran is lost."
            )
        self._ended(turn, record)

    def _ended(self, turn: schedules.Turn, record: TrialRecord) -> None:
        """Keeps a run that counts: each certified run ends here, and nowhere else."""
        self._ledger.add(turn, record)
        dropped = self._schedule.add(turn, record.runs[0])
        time_s, final = record.runs[0].time_to_target_s, final_metric(record)
        outcome = f"missed: {record.runs[0].stop_reason}"
        if time_s is not None:
            outcome = f"{time_s:.3f} s" + ("" if final is None else f", {final:.4f}")
        left = left_text(self._schedule.most_runs_left, self._ledger.records.values(), most=True)
        stage = "" if turn.stage == "first" else "final, "
        self._on_line(f"{stage}round {turn.round + 1}: {turn.name} {outcome}  ({left})")
        for each in dropped:
            self._on_line(each.reason)


def _nodes_like(record: TrialRecord, address: str | None) -> tuple[str, ...]:
    if address is None:
        return ()
    from tune_speed.tuning.ray.nodes import Nodes

    each = ResourceConfig(cpu=record.cpu_threads, gpu=float(record.device.kind == "cuda"))
    with Nodes(each, pin=str(record.device.one), is_local=False) as nodes:
        nodes.settle()
        return nodes.allowed


def _spec(record: TrialRecord, *, seed: int) -> SpecBase:
    task, kind = task_of(record), record.device.kind
    is_own = record.is_own_loop
    return spec_type(task)(
        study=record.study,
        trial_id=record.trial_id,
        params=record.params,
        recipe=OwnRecipe.model_validate(record.recipe) if is_own else recipe_that_ran(record),
        workload=task,
        workload_hash=record.workload_hash,
        space_hash=record.space_hash,
        seed=seed,
        evaluated_on="test",
        allotment=Allotment(
            device=kind,
            cpu_threads=record.cpu_threads,
            gpu_fraction=float(kind == "cuda"),
            price_per_hour=record.prices,
        ),
    )


def _save(folder: Path, records: Sequence[TrialRecord], done: Certification) -> None:
    refuse_link(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        # The leader may be of another study, whose names a stranger chose.
        name = f"{file_name(f'{record.study}-{record.trial_id}')}.json"
        replace_text(folder / name, json.dumps(record.certificate, indent=2, allow_nan=False))
    before, _ = next(iter(done.surroundings.values()))
    replace_text(folder / "packages.txt", before.code.lock)


def find_estimates(store: Store, study: str, device: str | None) -> list[TrackedTrial]:
    """Returns the study's estimates of one device, protocol and target, the last.

    Raises: ConfigError if none met the target, or they are of several devices; ServiceError.
    """
    found = [
        each
        for each in find_trials(store, Query(study=study, kind="estimate"))
        if (device or "") in str(each.record.device)
        and each.record.protocol_version == PROTOCOL_VERSION
    ]
    last = max(found, key=lambda each: each.record.started_at, default=None)
    found = [e for e in found if last and e.record.workload_hash == last.record.workload_hash]
    keys = {board_key(each.record) for each in found if each.record.time_to_target_s is not None}
    if not keys:
        raise ConfigError(
            f"a study must have a trial that met its target to be certified, but {study} has none"
            f"{f' on a device like {device}' if device else ''} under protocol"
            f" {PROTOCOL_VERSION} ({counted(len(found), 'trial')}). Search on, with"
            " `tune-speed search … --resume` and more trials."
        )
    # `H200` is a part of `2 x H200`.
    keys = {key for key in keys if key.device == device} or keys
    if len(keys) > 1:
        raise ConfigError(
            "a certification must be of one workload and device, but the study has met the target"
            f" on {', '.join(sorted(key.device for key in keys))}. Choose with --device."
        )
    return [each for each in found if board_key(each.record) in keys]


def choose_finalists(
    estimates: Sequence[TrackedTrial], top: int, favourites: Sequence[str] = ()
) -> list[TrackedTrial]:
    """Takes favourites first, trial ids in the order of their expected times, then the fastest."""
    chosen: dict[str, TrackedTrial] = {}
    place = {trial_id: number for number, trial_id in enumerate(favourites)}

    # The name decides a tie: other finalists than those begun could not be continued with.
    def order(each: TrackedTrial) -> tuple[float, float, float, str]:
        number, record = place.get(each.record.trial_id, math.inf), each.record
        is_best = target_of(record.workload).seeks_best
        goodness = final_goodness(record) if is_best else 0.0
        return number, -goodness, record.time_to_target_s or math.inf, each.name

    for each in sorted(estimates, key=order):
        if each.record.time_to_target_s is None and each.record.trial_id not in place:
            continue
        chosen.setdefault(json.dumps(each.record.recipe, sort_keys=True), each)
    return list(chosen.values())[:top]


def find_leader(store: Store, finalists: Sequence[TrackedTrial]) -> TrackedTrial | None:
    """Returns the best certified result to compare with; None if there is only the finalists'."""
    first = finalists[0].record
    wanted = board_key(first)._replace(kind="certified")
    names = {each.name for each in finalists}
    recipes = [each.record.recipe for each in finalists]
    others = [
        each
        for each in find_trials(store, Query(workload=first.workload_name, kind="certified"))
        if board_key(each.record) == wanted
        and each.record.is_certified
        and each.record.recipe not in recipes
        and each.name not in names
    ]

    is_best = target_of(first.workload).seeks_best
    return min(
        others,
        key=lambda each: (
            -final_goodness(each.record) if is_best else RunStatistics.of(each.record).expected_s
        ),
        default=None,
    )


def refuse_other_loop(study: str, record: TrialRecord, loop: Loop | None) -> None:
    """Raises: ConfigError unless `loop` is the training function of the study's trials."""
    name, theirs = record.workload.get("function"), record.workload.get("function_hash")
    if not record.is_own_loop and loop is not None:
        without = "certify it without --train, or train= in Python"
        raise ConfigError(f"study {study} is of recipes: {without}.")
    if record.is_own_loop and loop is None:
        raise ConfigError(
            f"study {study} is of the training function {name}, which is needed to run it again:"
            f" tune-speed certify {study} --train FILE.py:{name}, or in Python"
            f" tune_speed.certify({study!r}, train={name})."
        )
    if loop is not None and loop.source_hash != theirs:
        raise ConfigError(
            f"study {study} must be certified with the training function of its trials, {name} with"
            f" source {theirs}, but got {loop.name} with source {loop.source_hash}. Put it back as"
            " it was, or search with this one under another name."
        )
