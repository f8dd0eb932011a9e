"""The contracts of one entry of a table, how they say that they are broken, and those of all."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from pydantic import ValidationError

from tune_speed.components.metrics.base import Metric
from tune_speed.components.models.base import ModelConfig
from tune_speed.components.plugins.validation import NO_FIELDS, TABLES, form_problems
from tune_speed.core.config import Config

Thing = TypeVar("Thing", bound=type[Config] | Metric)
Kind = TypeVar("Kind", bound=Config)
Seen = Iterator[str]
"""What is seen where a contract does not hold, to follow "but"; nothing where it does."""
# Before each contract, so that an entry that seeds by itself, with 0 or 1 say, is noticed.
UNUSUAL_SEED = 271_828


class ContractError(AssertionError):
    """An entry breaks a contract: what must hold, what was seen, and what to fix."""


@dataclass(frozen=True, kw_only=True)
class Contracts(Generic[Thing]):
    """What must hold of an entry: one public method a contract.

    Its name is the claim, its docstring says what to fix, and it yields what is seen instead.
    """

    table: ClassVar[str]
    """Such as `MODELS`."""
    name: str
    entry: Thing
    fields: Mapping[str, Any] | None = None
    """Those that have no default, and others that make it cheap to check."""
    image_size: int = 32
    """Height and width of the images that it is checked with [pixels]."""
    model: ModelConfig | None = None
    """Network that a speed-up is checked on; None: whichever small one of ours it accepts."""

    @classmethod
    def names(cls) -> list[str]:
        """Returns the contracts' names, those of all entries first."""
        return [
            name
            for base in reversed(cls.__mro__)
            for name, member in vars(base).items()
            if inspect.isfunction(member) and not name.startswith("_")
        ]

    @property
    def _label(self) -> str:
        kind = "Metric" if isinstance(self.entry, Metric) else f"`{self.entry.__name__}`"
        return f"{kind} (`{self.name}`)"

    def entry_has_the_form_of_its_table(self) -> Seen:
        """Write it as the messages say: `--plugin` asks the same."""
        table, fields = TABLES[self.table], {**NO_FIELDS, **(self.fields or {})}
        found = form_problems(self.name, self.entry, table, (None, None), fields)
        if problems := "\n".join(map(str, found)):
            raise ContractError(problems)
        yield from ()


def hold(checked: Contracts[Any], contract: str) -> None:
    """Checks a contract of an entry; torch's random numbers are seeded within, and restored.

    Raises: ContractError if it does not hold; what the entry itself raised is the cause.
    """
    __tracebackhide__ = True
    method: Callable[[], Seen] = getattr(checked, contract)
    seen, cause = None, None
    with seeded(UNUSUAL_SEED):
        try:
            seen = next(method(), None)
        except ContractError:
            raise
        except Exception as error:
            seen, cause = f"its code {_failure(error)} (the traceback says where)", error
    if seen is not None:
        claim, fix = contract.replace("_", " "), " ".join(str(inspect.getdoc(method)).split())
        raise ContractError(f"{checked._label}: must hold: {claim}, but {seen}. {fix}") from cause


def _failure(error: Exception) -> str:
    # The first line is enough: the whole error is chained as the cause.
    text = str(error).strip().partition("\n")[0].rstrip(".")
    if isinstance(error, ValidationError):
        # Pydantic's first line only counts the mistakes.
        fields = ((".".join(map(str, each["loc"])), each["msg"]) for each in error.errors())
        text = "; ".join(f"`{path}`: {why}" for path, why in fields)
    return f"fails with {type(error).__name__}: {text}"


class ConfigContracts(Contracts[type[Kind]], Generic[Kind]):
    """The contracts of an entry that is a configuration, made of its fields."""

    usual: ClassVar[Mapping[str, Any]] = {}
    """Fields that none are given for."""

    def _config(self) -> Kind:
        fields = {**self.usual, **(self.fields or {})}
        try:
            return self.entry(**fields)
        except Exception as error:
            seen = f"{self._label}: a configuration of the fields {fields} {_failure(error)}"
            fix = f"Give defaults, or `fields={{'{self.name}': {{…}}}}` to the contracts."
            raise ContractError(f"{seen}. {fix}") from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's random numbers within, and restores them."""
    # Without `devices`, torch would save the state of every GPU, and warn of many.
    with torch.random.fork_rng(devices=[]):
        # By the CPU's generator: `torch.manual_seed` keeps a stack trace for each GPU library.
        torch.default_generator.manual_seed(seed)
        yield


def draws(call: Callable[[], object]) -> bool:
    """Returns whether the call changes the state of torch's random numbers."""
    before = torch.get_rng_state()
    call()
    return not torch.equal(torch.get_rng_state(), before)


def named(names: Iterable[str]) -> str:
    """Returns names for a message, in their order, sets sorted: at most five."""
    shown = [f"`{name}`" for name in (sorted(names) if isinstance(names, set) else names)]
    return ", ".join(shown[:5]) + (" and others" if len(shown) > 5 else "")
