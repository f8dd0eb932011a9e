"""How much each parameter matters, as figures need it."""

from collections import Counter
from collections.abc import Sequence

from tune_speed.reporting.figures.texts import shortened
from tune_speed.reporting.importance.importance import Importance, importance
from tune_speed.reporting.study.view import StudyPart, ViewedTrial

_LATEST: list[tuple[tuple[ViewedTrial, ...], tuple[Importance, ...]]] = []
"""The latest answers, with the trials they come from: two figures ask, and forests take seconds."""


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
    """Returns as many last parts of each dotted name as tell it from the others: `sgd.lr`."""
    return {name: shortened(_shortest(name, names), width) for name in names}


def _shortest(name: str, names: Sequence[str]) -> str:
    parts = name.split(".")
    suffixes = [".".join(parts[place:]) for place in reversed(range(len(parts)))]
    others = [other for other in names if other != name]
    alone = (s for s in suffixes if s and not any(f".{o}".endswith(f".{s}") for o in others))
    return next(alone, name)
