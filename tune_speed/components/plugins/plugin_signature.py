"""Whether a method can be called as the one that it replaces is."""

import inspect
from inspect import Parameter
from types import FunctionType
from typing import Any

_BY_NAME = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def signature_mistake(theirs: Any, ours: FunctionType) -> str | None:
    """Returns what must hold of a method so that every call of `ours` fits it; None if it does.

    Args:
        theirs: what a class has in the place of the method, as it stands in its body.
        ours: the method of the base.
    """
    if not isinstance(theirs, FunctionType):
        return f"must be a method with `self`, not a {type(theirs).__name__}"
    if inspect.iscoroutinefunction(theirs) and not inspect.iscoroutinefunction(ours):
        return "must be called without `await`"
    return _missing(theirs, ours) or _too_many(theirs, ours)


def written(method: FunctionType) -> str:
    """Returns the parameters of a method as its source has them, without types."""
    parameters = inspect.signature(method).parameters.values()
    plain = [each.replace(annotation=Parameter.empty) for each in parameters]
    return str(inspect.Signature(plain))


def _missing(theirs: FunctionType, ours: FunctionType) -> str | None:
    """Returns which parameter of `ours` is not taken in its way."""
    there = inspect.signature(theirs).parameters
    kinds = {parameter.kind for parameter in there.values()}
    for place, (name, parameter) in enumerate(inspect.signature(ours).parameters.items()):
        by_place = parameter.kind in _BY_PLACE
        if by_place and not _takes_place(list(there.values()), place, name):
            return f"must take `{name}` as parameter {place}, `self` being 0"
        if place == 0 or by_place:
            continue
        found = there.get(name)
        if found is not None and found.kind in _REST:  # `**b` is not called b.
            found = None
        if found is None and Parameter.VAR_KEYWORD not in kinds:
            return f"must take the parameter `{name}`"
        if found is not None and found.kind not in _BY_NAME:
            return f"must take the parameter `{name}` by name"
        may_be_left_out = parameter.default is not Parameter.empty
        if found is not None and may_be_left_out and found.default is Parameter.empty:
            return f"must have a default for `{name}`, as it may be left out"
    return None


def _takes_place(there: list[Parameter], place: int, name: str) -> bool:
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in there[: place + 1]):
        return True
    if place >= len(there) or there[place].kind not in _BY_PLACE:
        return False
    return place == 0 or there[place].name == name


def _too_many(theirs: FunctionType, ours: FunctionType) -> str | None:
    """Returns which parameter nobody gives."""
    known = inspect.signature(ours).parameters
    for place, (name, parameter) in enumerate(inspect.signature(theirs).parameters.items()):
        if (
            place == 0
            or name in known
            or parameter.kind in _REST
            or parameter.default is not Parameter.empty
        ):
            continue
        return f"must have a default for `{name}`, which nobody gives"
    return None
