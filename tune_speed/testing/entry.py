"""One entry of a table as contracts see it, how they say that they are broken, and those of all.

What holds for every configuration: it can be written, read back and explained.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from pydantic import ValidationError

from tune_speed.components.metrics.base import Metric
from tune_speed.components.models.base import ModelConfig
from tune_speed.core.config import Component, Config
from tune_speed.core.descriptions import descriptions

Kind = TypeVar("Kind", bound=Config)


class ContractError(AssertionError):
    """An entry breaks a contract: what must hold, what was seen, and what to fix."""


class Claims:
    """What can be claimed of an entry."""

    label: str
    """Begins every message."""

    def require(self, holds: bool, claim: str, *, seen: str, fix: str) -> None:
        """Does nothing where the claim holds, such as `logits must …`.

        `seen` is what was seen instead, to follow "but", `fix` what to change, in whole sentences.

        Raises: ContractError if it does not hold.
        """
        __tracebackhide__ = True
        if not holds:
            raise ContractError(f"{self.label}: {claim}, but {seen}. {fix}")

    @contextmanager
    def working(self, claim: str, *, fix: str, seed: int | None = None) -> Iterator[None]:
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
            raise ContractError(f"{self.label}: {claim}, but {seen}. {fix}") from error


@dataclass(frozen=True, kw_only=True)
class Entry(Claims, Generic[Kind]):
    """A name and its configuration's class."""

    name: str
    kind: type[Kind]
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Those that have no default, and others that make it cheap to check."""
    image_size: int = 32
    """Height and width of the images that it is checked with [pixels]."""
    model: ModelConfig | None = None
    """Network that a speed-up is checked on; None: whichever small one of ours it accepts."""
    tag: str | None = None
    """Key of the name in YAML where it is among the fields, as a data set's is."""

    @property
    def label(self) -> str:  # type: ignore[override]
        """Its class and name."""
        return f"`{self.kind.__name__}` (`{self.name}`)"

    def config(self) -> Kind:
        """Returns its configuration. Raises: ContractError if the fields do not make one."""
        claim = f"a configuration must be made of the fields {dict(self.fields)}"
        with self.working(
            claim,
            fix="Give defaults, or the fields that have none as"
            f" `fields={{'{self.name}': {{…}}}}` to the contracts.",
        ):
            return self.kind(**self.fields)


@dataclass(frozen=True, kw_only=True)
class MetricEntry(Claims):
    """A metric by its name."""

    name: str
    metric: Metric

    @property
    def label(self) -> str:  # type: ignore[override]
        """Its name."""
        return f"Metric `{self.name}`"


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's random numbers within, and restores them."""
    # Without `devices`, torch would save the state of every GPU, and warn of many.
    with torch.random.fork_rng(devices=[]):
        # By the CPU's generator: `torch.manual_seed` keeps a stack trace for each GPU library.
        torch.default_generator.manual_seed(seed)
        yield


TYPES = "Take types that JSON has: numbers, text, true and false, lists, and Config classes."


def config_round_trips_through_json(entry: Entry[Config]) -> None:
    """Records and caches keep configurations as JSON."""
    config = entry.config()
    with entry.working("the configuration must be written to JSON and read", fix=TYPES):
        back = entry.kind.model_validate_json(config.model_dump_json())
    claim = "the configuration must be the same when it is read back from JSON"
    fix = f"{TYPES} A validator must not change what it has accepted before."
    entry.require(back == config, claim, seen=f"{config!r} came back as {back!r}", fix=fix)


def config_round_trips_as_written_in_yaml(entry: Entry[Config]) -> None:
    """Recipes name an entry and give its fields; an exported recipe has every field."""
    config = entry.config()
    component = Component({entry.name: entry.kind}, tag=entry.tag)
    fix = f"{TYPES} YAML has lists and no tuples: a tuple needs a validator that takes a list."
    with entry.working("an exported recipe must be readable again", fix=fix):
        _, fields = component.split(component.join(config))
        back = entry.kind(**fields)
    claim = "the configuration must be the same when it is read back from a recipe"
    entry.require(back == config, claim, seen=f"{config!r} came back as {back!r}", fix=fix)


def class_and_every_field_are_documented(entry: Entry[Config]) -> None:
    """The docstrings are what `tune-speed list` and `tune-speed schema` print."""
    text = (entry.kind.__dict__.get("__doc__") or "").strip()
    fix = 'Write one line below `class …`, such as """What it is.""", and its source.'
    entry.require(bool(text), "the class must have a docstring", seen="it has none", fix=fix)
    bare = sorted(entry.kind.model_fields.keys() - descriptions(entry.kind).keys())
    entry.require(
        not bare,
        "every field must be documented",
        seen=f"there is no docstring below {', '.join(f'`{name}`' for name in bare)}",
        fix='Write below each, in """ """, what it means, its unit and its range.',
    )
