"""How a contract says that it does not hold."""

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError


class ContractError(AssertionError):
    """An entry breaks a contract: what must hold, what was seen, and what to mend."""


def require(holds: bool, claim: str, *, of: str, seen: str, mend: str) -> None:
    """Does nothing where the claim holds.

    Args:
        holds: whether it does.
        claim: what must hold, as `logits must …`.
        of: the entry, as its label has it.
        seen: what was seen instead, to follow "but".
        mend: what to change, in whole sentences.

    Raises:
        ContractError: It does not.
    """
    __tracebackhide__ = True
    if not holds:
        raise ContractError(f"{of}: {claim}, but {seen}. {mend}")


@contextmanager
def working(claim: str, *, of: str, mend: str) -> Iterator[None]:
    """Gives whatever an entry's own code raises within as a broken contract, and keeps its cause.

    Raises:
        ContractError: The block failed.
    """
    __tracebackhide__ = True
    try:
        yield
    except ContractError:
        raise
    except Exception as error:
        seen = f"it fails with {type(error).__name__}: {_in_short(error)}"
        raise ContractError(f"{of}: {claim}, but {seen}. {mend}") from error


def _in_short(error: Exception) -> str:
    """Returns the fields that pydantic refuses and why, or else an error's first line."""
    if isinstance(error, ValidationError):
        fields = ((".".join(map(str, each["loc"])), each["msg"]) for each in error.errors())
        return "; ".join(f"`{path}`: {text}" for path, text in fields)
    return str(error).strip().partition("\n")[0].rstrip(".")
