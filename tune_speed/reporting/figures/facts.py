"""What several figures need of a study's part, such as where each trial ended."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tune_speed.core import text
from tune_speed.core.targets import Target
from tune_speed.reporting.figures.texts import shortened
from tune_speed.reporting.importance.importance import Importance, importance
from tune_speed.reporting.study.view import StudyPart, ViewedTrial


class End(NamedTuple):
    """Where a trial ended."""

    train_s: float
    metric: float
    trial: ViewedTrial


def metric_words(target: Target) -> str:
    """Returns the target's metric, as people write it."""
    return target.metric.replace("_", " ")


def ends_of(part: StudyPart) -> list[End]:
    """Returns where the part's trials ended; those whose metric is not known are left out."""
    metric = part.target.metric
    finals = [(t, t.record.runs[-1].final) for t in part.trials if t.record.runs]
    return [
        End(final.train_s, value, trial)
        for trial, final in finals
        if final is not None and final.step > 0 and (value := final.value(metric)) is not None
    ]


def reached(part: StudyPart) -> list[ViewedTrial]:
    """Returns the part's trials that met the target."""
    return [trial for trial in part.trials if trial.record.time_to_target_s is not None]


def time_s_of(trial: ViewedTrial) -> float:
    """Returns the time to target [s] of a trial that has one."""
    time_s = trial.record.time_to_target_s
    assert time_s is not None, trial.record.trial_id
    return time_s


def estimates_of(part: StudyPart) -> dict[str, ViewedTrial]:
    """Returns by a certified trial's run id the estimate that it came from, where there is one."""
    # A study that was begun again has trial ids twice; a certificate knows the run.
    by_run = {trial.run_id: trial for trial in part.trials}
    by_id = {trial.record.trial_id: trial for trial in part.trials}
    found = {}
    for trial in part.certified:
        origin = (trial.record.certificate or {}).get("provenance", {}).get("trial_run_id", "")
        if estimate := by_run.get(origin) or by_id.get(trial.record.trial_id):
            found[trial.run_id] = estimate
    return found


# The latest trials with their importances: two figures need them, and forests take seconds.
_LATEST: list[tuple[tuple[ViewedTrial, ...], tuple[Importance, ...]]] = []


def importances_of(part: StudyPart) -> tuple[Importance, ...]:
    """Returns the parameters' importance for each question, from the part's estimates."""
    if not _LATEST or _LATEST[0][0] is not part.trials:
        answers = importance([trial.record for trial in part.trials]) if part.trials else ()
        _LATEST[:] = [(part.trials, answers)]
    return _LATEST[0][1]


def names_by_weight(part: StudyPart) -> list[str]:
    """Returns the searched parameters, the most important over all questions first."""
    weight: Counter[str] = Counter()
    for answer in importances_of(part):
        weight.update({parameter.name: parameter.value for parameter in answer.params})
    return sorted(searched_names(part), key=lambda name: -weight[name])


def searched_names(part: StudyPart) -> list[str]:
    """Returns the names of all parameters that some estimate chose."""
    return list(dict.fromkeys(name for trial in part.trials for name in trial.record.params))


def short_names(names: Sequence[str], width: int) -> dict[str, str]:
    """Returns the shortest ending of each dotted name that no other name has: `sgd.lr`."""
    return {name: shortened(ending, width) for name, ending in text.short_names(names).items()}
