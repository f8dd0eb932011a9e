"""Warm start: trials of earlier studies, read from MLflow once and stored in the ledger."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.core.text import counted
from tune_speed.study.file import StudyFile
from tune_speed.study.settings import PriorFile
from tune_speed.tracking.reader.queries import find_trials, study_names
from tune_speed.tracking.store.uri import strip_secrets
from tune_speed.training.workload import Workload
from tune_speed.tuning.admission import Admitted
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.prior_trials import CarriedOver, Machine, carry_over
from tune_speed.tuning.policy.base import PriorTrial

NO_CURVE = "a curve that is gone from MLflow"


def read_new(
    study: StudyFile, ledger: Ledger, admitted: Admitted, *, machine: Callable[[], Machine]
) -> dict[str, CarriedOver]:
    """Returns what carries over from studies that the ledger lacks. Raises: ConfigError."""
    if admitted.data is None:
        return {}
    uri, data_hash = admitted.uri, admitted.data.data_hash
    new = [each for each in study.search.warm_start if name_of(each) not in ledger.prior_trials]
    names = [each for each in new if isinstance(each, str)]
    found = {each.name: _imported(study, each) for each in new if isinstance(each, PriorFile)}
    if names:
        refuse_unknown_studies(study, names, uri=uri)
        there = machine()
        for name in names:
            found[name] = read_earlier(study, name, uri=uri, data_hash=data_hash, machine=there)
    return found


def _imported(study: StudyFile, file: PriorFile) -> CarriedOver:
    # Optuna takes half a second to import.
    from tune_speed.tuning.driver.imported_trials import import_trials

    assert isinstance(study.workload, Workload), "no warm start for a training function"
    return import_trials(file, space=study.space, workload=study.workload)


def name_of(prior: str | PriorFile) -> str:
    return prior if isinstance(prior, str) else prior.name


def refuse_unknown_studies(study: StudyFile, names: Sequence[str], *, uri: str) -> None:
    """Raises: ConfigError if one of `names` is no study in MLflow, or is this one."""
    known = [name for name in study_names(uri) if name != study.name]
    must, problems = f"must name other studies of {strip_secrets(uri)}", []
    for name in [name for name in names if name not in known]:
        near = did_you_mean(name, known).removeprefix("; ")
        hint = near[:1].upper() + near[1:] or "`tune-speed list studies` lists them."
        path, given = "search.warm_start", f'"{name}"'
        problem = Problem(path=path, must=must, given=given, hint=hint, file=study.file)
        problems.append(problem)
    if problems:
        raise ConfigError(problems=tuple(problems))


def read_earlier(
    study: StudyFile, name: str, *, uri: str, data_hash: str, machine: Machine
) -> CarriedOver:
    assert isinstance(study.workload, Workload), "no warm start for a training function"
    found = find_trials(uri, study=name, kind="estimate", with_curves=True)
    carried = carry_over(
        (trial.record for trial in found if trial.has_curve),
        space=study.space,
        workload=study.workload,
        data_hash=data_hash,
        machine=machine,
    )
    num_bare = sum(not trial.has_curve for trial in found)
    return CarriedOver(carried.trials, Counter({NO_CURVE: num_bare}) + Counter(carried.left_out))


def describe(name: str, trials: tuple[PriorTrial, ...], left_out: Mapping[str, int]) -> str:
    total = len(trials) + sum(left_out.values())
    timed = sum(trial.same_times for trial in trials)
    line = f"warm start: {len(trials)} of {counted(total, 'trial')} of {name} carry over"
    line += f", {timed} of them with their times" if trials else ""
    commonest = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    reasons = (f"{count} with {reason}" for reason, count in commonest)
    return f"{line}; left out: {', '.join(reasons)}" if left_out else line
