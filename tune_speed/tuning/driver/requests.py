"""What people may ask of a running search: each a line of the study's `control.jsonl`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, TypeAdapter, field_validator, model_validator

from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.core.renamed import LEFT_MUST, LEFT_TARGET
from tune_speed.core.words import ProposalKind, ProposalReason
from tune_speed.study.fields import config_mistakes
from tune_speed.study.mistake import near_miss, shown
from tune_speed.study.parameter import Scalar
from tune_speed.study.settings import parse_duration_s
from tune_speed.study.space import Params, SearchSpace, point_mistakes, read_point

TRIAL_ID = r"^t[0-9]{4,18}$"


class _Asked(Config):
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
    """Of the request: its answer in the ledger has the same."""
    at: str
    """When it was written; UTC, ISO 8601."""
    action: str

    @property
    def words(self) -> str:
        return self.action


class Try(_Asked):
    """Add a trial."""

    action: Literal["try"]
    params: dict[str, Scalar]
    """What is given, by the dotted names of searched parameters."""

    @property
    def words(self) -> str:
        return f"try {' '.join(f'{name}={shown(value)}' for name, value in self.params.items())}"

    @property
    def reason(self) -> ProposalReason:
        """Why its trial is proposed."""
        return ProposalReason.of(ProposalKind.BY_HAND, request_id=self.id)


class Stop(_Asked):
    """Stop a trial that runs."""

    action: Literal["stop"]
    trial: Annotated[str, Field(pattern=TRIAL_ID)]
    """Its id, such as `t0007`."""

    @property
    def words(self) -> str:
        return f"stop {self.trial}"


class Pause(_Asked):
    """Begin no trial."""

    action: Literal["pause"]


class GoOn(_Asked):
    """Begin trials again."""

    action: Literal["go-on"]


class Set(_Asked):
    """Change what the search is to do."""

    action: Literal["set"]
    trials: Annotated[int, Field(gt=0)] = 1
    """Trials to finish, those that have finished included."""
    concurrent: Annotated[int, Field(gt=0)] = 1
    """Trials that run at the same time, at most."""
    time_budget: str | float | None = Field(default=None, union_mode="left_to_right")
    """The search ends so long after it began, or was resumed; null: no limit."""
    target: float | None = None
    """In ledgers of earlier versions: another value of the target, which stays now."""

    @field_validator("time_budget")
    @classmethod
    def _is_duration(cls, duration: str | float | None) -> str | float | None:
        if duration is not None:
            parse_duration_s(duration)
        return duration

    @model_validator(mode="after")
    def _sets_something(self) -> Self:
        if not self.changes:
            raise ValueError(f"must set one of {', '.join(SETTINGS)}")
        return self

    @property
    def changes(self) -> dict[str, Any]:
        named = (name for name in (*SETTINGS, "target") if name in self.model_fields_set)
        return {name: getattr(self, name) for name in named}

    @property
    def words(self) -> str:
        return f"set {' '.join(f'{name}={shown(value)}' for name, value in self.changes.items())}"


SETTINGS = ("trials", "concurrent", "time_budget")
Request = Try | Stop | Pause | GoOn | Set
ACTIONS: dict[str, type[_Asked]] = {
    "try": Try, "stop": Stop, "pause": Pause, "go-on": GoOn, "set": Set,
}  # fmt: skip
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="action")])


def read_request(fields: Mapping[str, Any]) -> Request:
    return _REQUEST.validate_python(dict(fields))


def line_of(request: Request) -> dict[str, Any]:
    return request.model_dump(mode="json", exclude_unset=True)


def checked_request(fields: Mapping[str, Any]) -> Request:
    """Returns the request of what a user asks. Raises: ConfigError with every mistake."""
    action = fields.get("action")
    if not isinstance(action, str) or action not in ACTIONS:
        known = ", ".join(ACTIONS)
        raise ConfigError.of("action", f"must be one of {known}", given=shown(action))
    if action == "set":
        refuse_target(fields)
    mistakes = list(config_mistakes(ACTIONS[action], fields, (), fixed="a request has one value"))
    if not mistakes and action == "set" and not set(SETTINGS) & set(fields):
        raise ConfigError.of("set", f"must set one of {', '.join(SETTINGS)}", given="nothing")
    if mistakes:
        raise ConfigError(problems=tuple(mistake.problem() for mistake in mistakes))
    return read_request(fields)


def as_dict(request: Request, answer: "Answer | None" = None) -> dict[str, Any]:
    """Returns a request, and what came of it, for machines; nobody acted on it: no `answer`."""
    came: dict[str, Any] = {"answered_at": None, "refused": False, "answer": None}
    if answer is not None:
        came = {"answered_at": answer.at, "refused": answer.refused, "answer": answer.text}
    return {**line_of(request), "words": request.words, **came}


class Answer(Config):
    """What came of a request; an event of the ledger."""

    request: Request = Field(discriminator="action")
    at: str
    """When the driver acted; UTC, ISO 8601."""
    refused: bool = False
    text: str
    """What was done, or why nothing was."""
    point: dict[str, Scalar] = Field(default={})
    """The configuration that is tried, as far as it is fixed."""
    configured: dict[str, Any] = Field(default={})
    """What the study's file, or an option, said of the settings when they were set."""

    @property
    def words(self) -> str:
        return f"{self.request.words}: {'refused, ' if self.refused else ''}{self.text}"

    def as_dict(self) -> dict[str, Any]:
        return as_dict(self.request, self)

    def event(self) -> dict[str, Any]:
        rest = self.model_dump(mode="json", exclude={"request"}, exclude_defaults=True)
        return {"request": line_of(self.request), **rest}


Asked = TypeVar("Asked", Try, Stop, Set)


def accepted(answers: Iterable[Answer], kind: type[Asked]) -> list[tuple[Asked, Answer]]:
    found = [(each.request, each) for each in answers if not each.refused]
    return [(request, answer) for request, answer in found if isinstance(request, kind)]


def is_paused(answers: Iterable[Answer]) -> bool:
    said = [each.request for each in answers if not each.refused]
    last = [each for each in said if isinstance(each, Pause | GoOn)][-1:]
    return any(isinstance(each, Pause) for each in last)


def checked_in(tree: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request's fields with full names. Raises: ConfigError if outside of the space."""
    found = dict(fields)
    if found.get("action") == "try" and isinstance(found.get("params"), Mapping):
        space = SearchSpace.from_tree(tree["recipe"])
        found["params"] = full_names(found["params"], [p.name for p in space.parameters])
        completed(space, found["params"], {})
    return found


def refuse_target(changes: Mapping[str, Any]) -> None:
    """Raises a ConfigError if a request sets the target, as earlier versions let it."""
    if "target" in changes:
        given, hint = shown(changes["target"]), LEFT_TARGET
        raise ConfigError.of("target", LEFT_MUST, given=given, hint=hint)


def completed(space: SearchSpace, given: Mapping[str, Any], best: Mapping[str, Any]) -> Params:
    """Returns `given`, and of `best` what it lacks, as far as that fits. Raises: ConfigError."""
    mistakes = list(point_mistakes(space, [given], ()))
    if mistakes:
        raise ConfigError(problems=tuple(mistake.problem() for mistake in mistakes))
    point = read_point(space, given)
    for parameter in space.parameters:
        name = parameter.name
        if name not in point and name in best and parameter.is_active(point):
            point[name] = best[name]
    return {p.name: point[p.name] for p in space.parameters if p.name in point}


def full_names(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns full names: `lr` is `optimizer.sgd.lr`. Raises: ConfigError if several fit."""
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in given.items():
        short = name.removeprefix("recipe.")
        fits = [each for each in names if each == short or each.endswith(f".{short}")]
        fits = [short] if short in fits else fits
        if len(fits) > 1:
            must = f"must be one of {', '.join(fits)}, all of which end so"
            problems.append(Problem(path=name, must=must, hint=near_miss(name, names)))
        found[fits[0] if fits else short] = value
    if problems:
        raise ConfigError(problems=tuple(problems))
    return found
