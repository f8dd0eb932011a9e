"""Finalists of a study run again: fresh seeds, the test part, the whole device, the leader beside.

Every run is on disk before the next begins, so that the same command goes on where it stopped.
"""

import json
import re
import shlex
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tune_speed.core.comparability import ComparisonKey, board_key, final_metric
from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.core.records import PROTOCOL_VERSION, RunResult, Status, Timing, TrialRecord
from tune_speed.core.redact import redact
from tune_speed.core.stats import expected_time_s, sample_of
from tune_speed.custom.shipping import Loop
from tune_speed.custom.spec import OwnRecipe, spec_type, task_of
from tune_speed.experiments.certification.assemble import Finalist, Origin, certified_record
from tune_speed.experiments.certification.ledger import CertifyLedger
from tune_speed.experiments.certification.schedule import (
    CertificationSchedule,
    FinalRank,
    Plan,
    Turn,
)
from tune_speed.reporting.trials.recipe_export import recipe_that_ran
from tune_speed.runtime.process import stop_signals
from tune_speed.runtime.turnstile import file_name
from tune_speed.study.schema import check_study_name
from tune_speed.study.settings import CertifyConfig, ResourceConfig
from tune_speed.tracking.reader.queries import find_trials
from tune_speed.tracking.store.store import open_store
from tune_speed.tracking.store.uri import strip_secrets, tracking_uri
from tune_speed.tracking.writer.tracker import Tracker, Undelivered
from tune_speed.training.trial import Allotment, SpecBase
from tune_speed.tuning.driver.prior_trials import device_of_one
from tune_speed.tuning.provenance import Surroundings
from tune_speed.tuning.ray.exclusive import ExclusiveDevice, Stopped

DROPPING_RULE = (
    "after each round a finalist is dropped whose expected time with restarts is above the best's"
    " beyond doubt; the chance that the true best is dropped is at most 5 % over the whole race"
)
MAX_SHARED_RUNS = 3
"""A run beside which others came to the device does not count; so many in a row end it all."""
LARGE_WAIT = 0.05
"""Share of a run's time in which its threads wait for a core, from which on it is said."""
DELIVERY_S = 60.0
CERTIFICATION = "certification"

_FILE = re.compile(r"certify-(\d+)\.jsonl")


class CertifyResult(NamedTuple):
    """What a certification leaves for the user to read."""

    records: tuple[TrialRecord, ...]
    """Certified records, best first; empty if it was stopped."""
    finalists: tuple[Finalist, ...]
    """What was certified, the best estimate first."""
    estimates: tuple[TrialRecord, ...]
    """All trials of the study that may be compared with these."""
    ranks: tuple[FinalRank, ...]
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
) -> CertifyResult:
    """Runs the finalists of a study, or goes on with them, and records what they are worth.

    Args:
        study: as MLflow has it.
        config: how many run how often.
        folder: of the study's files.
        device: part of the device's name, where the study has estimates of several.
        address: Ray cluster; None: a local one.
        again: begin anew although one was begun before.
        on_line: sees each run.
        anew_if_changed: begin anew where finalists, leader or numbers are not those that were
            begun, instead of raising an error.
        loop: the training function of the study; None where recipes were searched.

    Raises: ConfigError, DataError, ServiceError, StorageError.
    """
    check_study_name(study)
    uri = tracking_uri()
    estimates = find_estimates(uri, study, device)
    finalists = _finalists(estimates, config.top)
    _refuse_other_loop(study, finalists[0].record, loop)
    leader = _leader(uri, finalists)
    header = _header(config, finalists, leader)
    path = _ledger_path(folder, again=again)
    if anew_if_changed and _is_another(path, header):
        path = _ledger_path(folder, again=True)
    with CertifyLedger(path) as ledger:
        ledger.begin(header)
        contest = _contest(finalists, leader, config, seed_base=f"{study}/{path.stem}")
        for ran in ledger.runs:
            contest.add(ran.turn, ran.record.runs[0])
        if ledger.runs:
            on_line(f"going on after {len(ledger.runs)} runs that are in {path}")
        on_line(_outlook(contest, finalists))
        everyone = {each.name: each for each in (*finalists, *([leader] if leader else []))}
        was_stopped = not _is_complete(contest, ledger, everyone) and _run(
            contest, ledger, everyone, address, on_line, loop
        )
        ranks = contest.ranks()
        if was_stopped:
            return CertifyResult((), tuple(finalists), (), ranks, folder, (), True)
        surroundings = {name: _facts(ledger, name) for name in everyone}
        origin = _origin(uri, estimates, config)
        records = tuple(
            certified_record(
                placed,
                finalists=everyone,
                runs=ledger.runs,
                surroundings=surroundings[placed.name],
                origin=origin,
                ranks={each.name: each for each in ranks},
            )
            for placed in ranks
        )
        _save(folder / "certified", records, surroundings)
    own = tuple(r for r in records if f"{r.study}/{r.trial_id}" != (leader and leader.name))
    undelivered = _deliver(uri, study, own, number=path.stem)
    return CertifyResult(
        records, tuple(finalists), origin.estimates, ranks, folder, undelivered, False
    )


def find_estimates(uri: str, study: str, device: str | None) -> list[Finalist]:
    """Returns the study's estimates that may be compared, all of one device and protocol.

    Raises: ConfigError if none met the target, or they are of several devices; ServiceError.
    """
    found = [
        Finalist(name=f"{t.record.study}/{t.record.trial_id}", record=t.record, run_id=t.run_id)
        for t in find_trials(uri, study=study, kind="estimate")
        if (device or "") in t.record.device and t.record.protocol_version == PROTOCOL_VERSION
    ]
    hits = [each for each in found if each.record.time_to_target_s is not None]
    if not hits:
        raise ConfigError(
            f"a study must have a trial that met its target to be certified, but {study} has none"
            f"{f' on a device like {device}' if device else ''} under protocol"
            f" {PROTOCOL_VERSION} ({len(found)} trials). Search on, with `tune-speed search …"
            " --resume` and more trials."
        )
    keys = {board_key(each.record) for each in hits}
    if len(keys) > 1:
        raise ConfigError(
            "a certification must be of one workload and device, but the study has met the target"
            f" on {', '.join(sorted(key.device for key in keys))}. Choose with --device."
        )
    return [each for each in found if board_key(each.record) in keys]


def _refuse_other_loop(study: str, record: TrialRecord, loop: Loop | None) -> None:
    """Raises: ConfigError unless what is to be called is what the study called."""
    if not record.is_own_loop:
        if loop is None:
            return
        raise ConfigError(
            f"study {study} is of recipes: certify it without --train, or train= in Python."
        )
    name, theirs = record.workload["function"], record.workload["function_hash"]
    if loop is None:
        raise ConfigError(
            f"study {study} is of the training function {name}, which is needed to run it again:"
            f" tune-speed certify {study} --train FILE.py:{name}, or in Python"
            f" tune_speed.certify({study!r}, train={name})."
        )
    if loop.source_hash != theirs:
        raise ConfigError(
            f"study {study} must be certified with the training function of its trials, {name} with"
            f" source {theirs}, but got {loop.name} with source {loop.source_hash}. Put it back as"
            " it was, or search with this one under another name."
        )


def _finalists(estimates: Sequence[Finalist], top: int) -> list[Finalist]:
    """Returns the fastest, each recipe once."""
    timed = [e for e in estimates if e.record.time_to_target_s is not None]
    ordered = sorted(timed, key=lambda e: (e.record.time_to_target_s or 0.0, e.name))
    different = {json.dumps(e.record.recipe, sort_keys=True): e for e in reversed(ordered)}
    return [e for e in ordered if e in different.values()][:top]


def _leader(uri: str, finalists: Sequence[Finalist]) -> Finalist | None:
    """Returns the best certified result of the same workload, device and protocol, if another's."""
    key, recipes = board_key(finalists[0].record), [each.record.recipe for each in finalists]
    wanted = ComparisonKey(**{**key._asdict(), "kind": "certified"})
    found = [
        Finalist(name=f"{t.record.study}/{t.record.trial_id}", record=t.record, run_id=t.run_id)
        for t in find_trials(uri, workload=finalists[0].record.workload_name, kind="certified")
        if board_key(t.record) == wanted and t.record.recipe not in recipes
    ]
    names = {each.name for each in finalists}
    others = [each for each in found if each.name not in names]
    return min(others, key=lambda each: expected_s(each.record), default=None)


def expected_s(record: TrialRecord) -> float:
    """Returns the expected time with restarts over the runs [s]; infinite without a hit."""
    return expected_time_s([sample_of(run) for run in record.runs])


def _ledger_path(folder: Path, *, again: bool) -> Path:
    matches = (_FILE.fullmatch(path.name) for path in folder.glob("certify-*.jsonl"))
    last = max((int(match[1]) for match in matches if match), default=0)
    return folder / f"certify-{last + 1 if again or not last else last}.jsonl"


def _outlook(contest: CertificationSchedule, finalists: Sequence[Finalist]) -> str:
    """Returns how much is to come, by what the finalists' runs took in the search."""
    runs = [each.record.runs[-1] for each in finalists]
    run_s = statistics.fmean(run.clocks.train_s + run.clocks.eval_s for run in runs)
    left = contest.most_runs_left
    leader = f" beside {contest.leader}" if contest.leader else ""
    told = f"at most {left} runs, about {left * run_s / 60:.1f} min of training and evaluation"
    return f"{len(finalists)} finalists{leader}: {told}"


def _is_another(path: Path, header: dict[str, object]) -> bool:
    """Returns whether something else was begun in the file."""
    with CertifyLedger(path) as ledger:
        return ledger.header is not None and bool(ledger.differences(header))


def _header(
    config: CertifyConfig, finalists: Sequence[Finalist], leader: Finalist | None
) -> dict[str, object]:
    return {
        **config.model_dump(),
        "finalists": [each.name for each in finalists],
        "leader": leader.name if leader else None,
        "workload_hash": finalists[0].record.workload_hash,
        "protocol_version": PROTOCOL_VERSION,
    }


def _contest(
    finalists: Sequence[Finalist],
    leader: Finalist | None,
    config: CertifyConfig,
    *,
    seed_base: str,
) -> CertificationSchedule:
    return CertificationSchedule(
        [each.name for each in finalists],
        leader=leader.name if leader else None,
        plan=Plan(config.seeds, config.final, config.final_seeds),
        seed_base=seed_base,
        miss_s=finalists[0].record.miss_s,
    )


def _run(
    contest: CertificationSchedule,
    ledger: CertifyLedger,
    everyone: dict[str, Finalist],
    address: str | None,
    on_line: Callable[[str], None],
    loop: Loop | None,
) -> bool:
    """Runs all turns; returns whether Ctrl-C ended it."""
    from tune_speed.tuning.ray import cluster

    first = next(iter(everyone.values())).record
    kind = first.device_kind
    cluster.connect(address, resources=ResourceConfig(cpu=1, gpu=float(kind == "cuda")))
    with stop_signals(signal.SIGINT, signal.SIGTERM) as is_stopped:
        device = ExclusiveDevice(
            device=kind,
            cpu_threads=first.cpu_threads,
            devices=max(each.record.recipe.get("devices", 1) for each in everyone.values()),
            node_ids=_nodes_like(first, address),
            on_line=on_line,
            is_stopped=is_stopped,
            loop=loop,
        )
        try:
            _run_on(device, contest, ledger, everyone, on_line)
        except Stopped:
            return True
        finally:
            device.close()
            cluster.disconnect()
    return False


def _nodes_like(record: TrialRecord, address: str | None) -> tuple[str, ...]:
    """Returns the nodes of the cluster that have the device of these trials; empty for any."""
    if address is None:
        return ()
    from tune_speed.tuning.ray.nodes import Nodes

    each = ResourceConfig(cpu=record.cpu_threads, gpu=float(record.device_kind == "cuda"))
    with Nodes(each, pin=device_of_one(record.device), is_local=False) as nodes:
        nodes.settle()
        return nodes.allowed()


def _run_on(
    device: ExclusiveDevice,
    contest: CertificationSchedule,
    ledger: CertifyLedger,
    everyone: dict[str, Finalist],
    on_line: Callable[[str], None],
) -> None:
    """Takes all turns that are left. Raises: Stopped."""
    for name, each in everyone.items():
        ledger.described(name, _describe(device, each, on_line))
    while (turn := contest.next()) is not None:
        _take_turn(turn, contest, ledger, everyone[turn.name], device, on_line)
    for name, each in everyone.items():
        ledger.described(name, _describe(device, each, on_line), is_last=True)


def _is_complete(
    contest: CertificationSchedule, ledger: CertifyLedger, everyone: dict[str, Finalist]
) -> bool:
    return contest.next() is None and all(name in ledger.last_facts for name in everyone)


def _facts(ledger: CertifyLedger, name: str) -> tuple[Surroundings, Surroundings]:
    """Returns what surrounded the runs of a contestant, before the first and after the last."""
    facts = ledger.first_facts[name], ledger.last_facts[name]
    before, after = (Surroundings.model_validate(each) for each in facts)
    return before, after


def _describe(
    device: ExclusiveDevice, finalist: Finalist, on_line: Callable[[str], None]
) -> dict[str, Any]:
    facts = Surroundings.model_validate_json(device.describe(_spec(finalist, seed=0)))
    if facts.machine.device != finalist.record.device:
        raise ConfigError(
            f"a study must be certified on the device of its trials, {finalist.record.device}, but"
            f" this is {facts.machine.device}. Certify there, or search here first."
        )
    return facts.model_dump(mode="json")


def _take_turn(
    turn: Turn,
    contest: CertificationSchedule,
    ledger: CertifyLedger,
    finalist: Finalist,
    device: ExclusiveDevice,
    on_line: Callable[[str], None],
) -> None:
    for _ in range(MAX_SHARED_RUNS):
        record = device.run(_spec(finalist, seed=turn.seed))
        run = record.runs[0]
        if run.timing == Timing.EXCLUSIVE or run.status == Status.FAILED:
            break
        on_line(f"{turn.name} runs again: it was not alone on the device ({_company(record)})")
    else:
        raise ServiceError(
            "a certified run must have its device to itself, but others were there in"
            f" {MAX_SHARED_RUNS} runs: {_company(record)}. Let them end, and give the same command"
            " again: nothing that ran is lost."
        )
    ledger.ran(turn, record)
    dropped = contest.add(turn, run)
    time = "missed" if run.time_to_target_s is None else f"{run.time_to_target_s:.3f} s"
    final = final_metric(record)
    metric = "" if final is None else f", {final:.4f}"
    stage = "" if turn.stage == "first" else "final, "
    left = contest.most_runs_left
    rest = f"at most {left} to go" if left else "the last"
    on_line(f"{stage}round {turn.round + 1}: {turn.name} {time}{metric}  ({rest})")
    if (share := _waiting_share(run)) > LARGE_WAIT:
        on_line(
            f"other work was on the machine: that run waited for a core {share:.0%} of its time"
        )
    for each in dropped:
        on_line(each.reason)


def _waiting_share(run: RunResult) -> float:
    """Returns the share of training and evaluation in which threads waited for a core."""
    busy_s = run.clocks.train_s + run.clocks.eval_s
    return (run.cpu_wait_s or 0.0) / busy_s if busy_s else 0.0


def _company(record: TrialRecord) -> str:
    run = record.runs[0]
    return ", ".join(run.cotenants) or run.note or "unknown"


def _spec(finalist: Finalist, *, seed: int) -> SpecBase:
    record, task, device = finalist.record, task_of(finalist.record), finalist.record.device_kind
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
            device=device, cpu_threads=record.cpu_threads, gpu_fraction=float(device == "cuda")
        ),
    )


def _origin(uri: str, estimates: Sequence[Finalist], config: CertifyConfig) -> Origin:
    return Origin(
        uri=strip_secrets(uri),
        command=redact(shlex.join(["tune-speed", *sys.argv[1:]])),
        estimates=tuple(each.record for each in estimates),
        sampler=None,
        search_seed=None,
        chosen_by=f"one of the {config.top} fastest of {len(estimates)} estimates of one seed each",
        dropping_rule=DROPPING_RULE,
    )


def _save(
    folder: Path,
    records: Sequence[TrialRecord],
    surroundings: dict[str, tuple[Surroundings, Surroundings]],
) -> None:
    """Writes each certificate, and the packages that it was made with."""
    folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        # The leader may be of another study, whose names a stranger chose.
        name = f"{file_name(f'{record.study}-{record.trial_id}')}.json"
        (folder / name).write_text(json.dumps(record.certificate, indent=2, allow_nan=False))
    code = next(iter(surroundings.values()))[0].code
    (folder / "packages.txt").write_text(code.lock)


def _deliver(
    uri: str, study: str, records: Sequence[TrialRecord], *, number: str
) -> tuple[Undelivered, ...]:
    tags = {
        "workload": records[0].workload_name,
        "workload_hash": records[0].workload_hash,
        "protocol_version": str(PROTOCOL_VERSION),
    }
    tracker = Tracker(
        open_store(uri),
        study=study,
        study_tags=tags,
        search_id=number,
        parent_kind=CERTIFICATION,
    )
    tracker.reconcile(records)
    return tracker.close(timeout_s=DELIVERY_S)
