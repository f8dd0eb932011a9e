"""The contracts of one entry of a table, how they say that they are broken, and those of all."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from pydantic import ValidationError

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.plugins.validation import TABLES, class_problems
from tune_speed.core.config import Component, Config

Thing = TypeVar("Thing")
Kind = TypeVar("Kind", bound=Config)


class ContractError(AssertionError):
    """An entry breaks a contract: what must hold, what was seen, and what to fix."""


@dataclass(frozen=True, kw_only=True)
class Contracts(Generic[Thing]):
    """What must hold of an entry: one public method a contract, named by its claim.

    It returns nothing, and raises ContractError if the entry breaks it.
    """

    name: str
    entry: Thing
    fields: Mapping[str, Any] = field(default_factory=dict)
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
        return f"Metric `{self.name}`"

    def _require(self, holds: bool, claim: str, seen: str, fix: str) -> None:
        """Does nothing where the claim holds, such as `logits must …`.

        `seen` is what was seen instead, to follow "but", `fix` what to change, in whole sentences.

        Raises: ContractError if it does not hold.
        """
        __tracebackhide__ = True
        if not holds:
            raise ContractError(f"{self._label}: {claim}, but {seen}. {fix}")

    @contextmanager
    def _drawing_nothing(self, what: str, *, fix: str) -> Iterator[None]:
        before = torch.get_rng_state()
        yield
        claim = f"`{what}` must leave torch's random numbers alone"
        is_same = torch.equal(torch.get_rng_state(), before)
        self._require(is_same, claim, "some were drawn or seeded", fix)

    @contextmanager
    def _working(self, claim: str, *, fix: str, seed: int | None = None) -> Iterator[None]:
        """Turns whatever an entry's own code raises within into a broken contract, with its cause.

        With `seed`, torch's random numbers are seeded within, and restored.

        Raises: ContractError if the block fails.
        """
        __tracebackhide__ = True
        try:
            with nullcontext() if seed is None else seeded(seed):
                yield
        except ContractError:
            # A contract that is broken within says what to fix; that this block failed does not.
            raise
        except Exception as error:
            # The first line is enough: the whole error is chained as the cause.
            text = str(error).strip().partition("\n")[0].rstrip(".")
            if isinstance(error, ValidationError):
                # Pydantic's first line only counts the mistakes.
                fields = ((".".join(map(str, each["loc"])), each["msg"]) for each in error.errors())
                text = "; ".join(f"`{path}`: {why}" for path, why in fields)
            seen = f"it fails with {type(error).__name__}: {text}"
            raise ContractError(f"{self._label}: {claim}, but {seen}. {fix}") from error


class ConfigContracts(Contracts[type[Kind]], Generic[Kind]):
    """What holds for every configuration: its form, and that it can be written and read back."""

    table: ClassVar[str]
    """Such as `MODELS`."""
    usual: ClassVar[Mapping[str, Any]] = {}
    """Fields that none are given for."""
    tag: ClassVar[str | None] = None
    """Key of the name in YAML where it is among the fields, as a data set's is."""

    @property
    def _label(self) -> str:
        return f"`{self.entry.__name__}` (`{self.name}`)"

    def _config(self) -> Kind:
        fields = {**self.usual, **self.fields}
        claim = f"a configuration must be made of the fields {fields}"
        fix = (
            "Give defaults, or the fields that have none as"
            f" `fields={{'{self.name}': {{…}}}}` to the contracts."
        )
        with self._working(claim, fix=fix):
            return self.entry(**fields)

    def class_has_the_form_of_its_table(self) -> None:
        """As a plugin's must: methods, docstrings, and fields that JSON has."""
        found = class_problems(self.name, self.entry, TABLES[self.table], (None, None))
        if problems := "\n".join(map(str, found)):
            raise ContractError(problems)

    def config_round_trips_through_json_and_yaml(self) -> None:
        """Records and caches keep JSON; an exported recipe names the entry and has every field."""
        config, component = self._config(), Component({self.name: self.entry}, tag=self.tag)
        fix = (
            "Take types that JSON has: numbers, text, true and false, lists, and Config classes."
            " YAML has lists and no tuples: a tuple needs a validator that takes a list. A"
            " validator must not change what it has accepted before."
        )
        with self._working("the configuration must be readable again", fix=fix):
            _, fields = component.split(component.join(config))
            back = [
                self.entry.model_validate_json(config.model_dump_json()),
                self.entry(**fields),
            ]
        for each in back:
            claim = "the configuration must be the same when it is read back"
            seen = f"{config!r} came back as {each!r}"
            self._require(each == config, claim, seen=seen, fix=fix)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's random numbers within, and restores them."""
    # Without `devices`, torch would save the state of every GPU, and warn of many.
    with torch.random.fork_rng(devices=[]):
        # By the CPU's generator: `torch.manual_seed` keeps a stack trace for each GPU library.
        torch.default_generator.manual_seed(seed)
        yield
