"""What a search needs besides its ledger: an MLflow store with its run, and Ray with its nodes."""

import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.core.folders import studies_folder
from tune_speed.core.records import PROTOCOL_VERSION
from tune_speed.core.redact import redact
from tune_speed.core.text import counted
from tune_speed.study.file import StudyFile
from tune_speed.study.settings import PriorFile, SearchConfig
from tune_speed.study.validation import most_devices
from tune_speed.tracking.reader.queries import Query, find_trials, with_curves
from tune_speed.tracking.reader.studies import list_studies
from tune_speed.tracking.store.opening import begun
from tune_speed.tracking.store.store import Store
from tune_speed.tracking.writer.descriptions import SearchPlan
from tune_speed.training.trial import utc_now
from tune_speed.training.workload import Workload
from tune_speed.tuning.admission import Admitted, pinned_device
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.prior_trials import (
    CarriedOver,
    Machine,
    carry_over,
    related_trials,
)
from tune_speed.tuning.policy.base import PriorTrial
from tune_speed.tuning.precheck import Precheck
from tune_speed.tuning.ray.health import Head
from tune_speed.tuning.ray.token import agree_on_token

if TYPE_CHECKING:  # Ray takes a second to import.
    from tune_speed.tuning.ray.concurrency import Packing
    from tune_speed.tuning.ray.nodes import Nodes


@contextmanager
def connected(
    admitted: Admitted, ledger: Ledger, address: str | None, on_line: Callable[[str], None]
) -> Iterator["Nodes"]:
    """Opens MLflow and Ray, checks networks. Raises: ConfigError, ServiceError, StorageError."""
    study = admitted.study
    on_line("starting Ray …" if address is None else f"joining Ray at {address} …")
    pin, check = pinned_device(ledger), Precheck(study, admitted.data)
    try:
        with store_and_ray(study, admitted.store, address=address, pin=pin) as nodes:
            check.refuse_misfits()
            nodes.settle()
            yield nodes
    finally:
        check.cancel()


@contextmanager
def store_and_ray(
    study: StudyFile, store: Store, *, address: str | None, pin: str | None
) -> Iterator["Nodes"]:
    # Ray reads it on import: its processes have 30 s to start by default, too little when busy.
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
    if address is not None:
        agree_on_token(address)
    resources, is_local = study.search.resources, address is None
    with ExitStack() as stack:
        if is_local:
            stack.callback(Head().end)  # It starts while Ray is imported here.
        from tune_speed.tuning.ray import cluster
        from tune_speed.tuning.ray.nodes import Nodes

        opened = begun(partial(_open, store, study.name))
        # Imports of the first proposal, while Ray's own processes start.
        policies = begun(partial(importlib.import_module, "tune_speed.tuning.policies"))
        devices = most_devices(study.space) if study.loop is None else 1
        if is_local:
            opened()  # Where this refuses, Ray is not waited for.
        stack.enter_context(cluster.connected(address, resources=resources, devices=devices))
        opened()
        policies()
        seen = studies_folder() / study.name / "ledger.jsonl"
        with Nodes(resources, pin=pin, is_local=is_local, study=seen) as nodes:
            yield nodes


def _open(store: Store, study: str) -> None:
    store.create()
    store.refuse_deleted(store.call(lambda client: client.get_experiment_by_name(study)))


def arguments_of_a_new_search() -> list[str]:
    """Returns this command's arguments without those that go on with a search."""
    return [each for each in sys.argv[1:] if each not in ("--resume", "--from-mlflow")]


def plan_of(study: StudyFile) -> SearchPlan:
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


def tags_of(
    study: StudyFile, workload_hash: str, packing: "Packing | None" = None
) -> dict[str, str]:
    search, target = study.search, study.workload.target
    has_sampler = search.policy == SearchConfig.model_fields["policy"].default
    return {
        "workload": study.workload.label,
        "workload_hash": workload_hash,
        "target": target.words,
        "mode": study.workload.mode,
        "trials": str(search.trials),
        "concurrent": str(search.at_once),
        "ends_at": ends_at(search.time_budget_s),
        **({"packing": packing.line()} if packing is not None else {}),
        "space_hash": study.space.hash,
        "searched": ", ".join(parameter.name for parameter in study.space.parameters),
        "policy": search.policy,
        **({"sampler": search.sampler} if has_sampler else {}),
        **({"warm_start": _named(search.warm_start)} if search.warm_start else {}),
        "protocol_version": str(PROTOCOL_VERSION),
    }


def ends_at(left_s: float | None) -> str:
    """Returns when a search ends whose time budget has so much left [s]; empty without one."""
    if left_s is None:
        return ""
    return (datetime.fromisoformat(utc_now()) + timedelta(seconds=left_s)).isoformat()


MOST_RELATED, MOST_OF_RELATED = 12, 300
"""Studies of the store, and trials of each of another task, that `warm_start: auto` learns from."""


def read_new(
    study: StudyFile, ledger: Ledger, admitted: Admitted, *, machine: Callable[[], Machine]
) -> dict[str, CarriedOver]:
    """Returns what carries over from studies that the ledger lacks. Raises: ConfigError."""
    if admitted.data is None:
        return {}
    store, data_hash = admitted.store, admitted.data.data_hash
    if study.search.warm_start == "auto":
        is_new = not (ledger.proposals or ledger.prior_trials)
        return read_related(study, store, data_hash, machine()) if is_new else {}
    new = [each for each in study.search.warm_start if name_of(each) not in ledger.prior_trials]
    names = [each for each in new if isinstance(each, str)]
    found = {each.name: _imported(study, each) for each in new if isinstance(each, PriorFile)}
    if names:
        refuse_unknown_studies(study, names, store)
        there: Any = {"data_hash": data_hash, "machine": machine(), "related": False}
        found |= {name: read_earlier(study, name, store, **there) for name in names}
    return found


def _imported(study: StudyFile, file: PriorFile) -> CarriedOver:
    # Optuna takes half a second to import.
    from tune_speed.tuning.driver.imported_trials import import_trials

    assert isinstance(study.workload, Workload), "no warm start for a training function"
    return import_trials(file, space=study.space, workload=study.workload)


def _named(warm_start: str | Sequence[str | PriorFile]) -> str:
    return warm_start if isinstance(warm_start, str) else ", ".join(map(name_of, warm_start))


def read_related(
    study: StudyFile, store: Store, data_hash: str, machine: Machine
) -> dict[str, CarriedOver]:
    """Returns what the newest other studies of the store say, of the same task or a related one."""
    names = [each.name for each in list_studies(store) if each.name != study.name]
    there: Any = {"data_hash": data_hash, "machine": machine, "related": True}
    read = {name: read_earlier(study, name, store, **there) for name in names[:MOST_RELATED]}
    return {name: carried for name, carried in read.items() if carried.trials}


def name_of(prior: str | PriorFile) -> str:
    return prior if isinstance(prior, str) else prior.name


def refuse_unknown_studies(study: StudyFile, names: Sequence[str], store: Store) -> None:
    """Raises: ConfigError if one of `names` is no study in MLflow, or is this one."""
    known = [name for name in store.studies() if name != study.name]
    must, problems = f"must name other studies of {store}", []
    for name in [name for name in names if name not in known]:
        near = did_you_mean(name, known).removeprefix("; ")
        hint = near[:1].upper() + near[1:] or "`tune-speed list studies` lists them."
        path, given = "search.warm_start", f'"{name}"'
        problem = Problem(path=path, must=must, given=given, hint=hint, file=study.file)
        problems.append(problem)
    if problems:
        raise ConfigError(problems=tuple(problems))


def read_earlier(
    study: StudyFile, name: str, store: Store, *, data_hash: str, machine: Machine, related: bool
) -> CarriedOver:
    """Returns what the study `name` says of this task; if nothing and `related`, of its own."""
    assert isinstance(study.workload, Workload), "no warm start for a training function"
    ours: Any = {"space": study.space, "workload": study.workload}
    found = find_trials(store, Query(study=name, kind="estimate"))
    read_curves = partial(with_curves, store)
    carried = carry_over(
        found, read_curves=read_curves, data_hash=data_hash, machine=machine, **ours
    )
    if carried.trials or not related:
        return carried
    # Evenly spread: the first are its hits, from which it cannot be learned what misses.
    num = min(len(found), MOST_OF_RELATED)
    some = [found[i * len(found) // num].record for i in range(num)]
    return related_trials(some, name=name, **ours)


def describe(name: str, trials: tuple[PriorTrial, ...], left_out: Mapping[str, int]) -> str:
    total = len(trials) + sum(left_out.values())
    if any(trial.task for trial in trials):
        which = counted(total, "trial")
        return f"warm start: the best recipes of {name} first, by {len(trials)} of its {which}"
    timed = sum(trial.same_times for trial in trials)
    line = f"warm start: {len(trials)} of {counted(total, 'trial')} of {name} carry over"
    line += f", {timed} of them with their times" if trials else ""
    commonest = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    reasons = (f"{count} with {reason}" for reason, count in commonest)
    return f"{line}; left out: {', '.join(reasons)}" if left_out else line
