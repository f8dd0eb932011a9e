"""One entry of a table, as the contracts see it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from tune_speed.components.models.base import ModelConfig
from tune_speed.core.config import Config
from tune_speed.testing.claims import working

Kind = TypeVar("Kind", bound=Config)


@dataclass(frozen=True, kw_only=True)
class Entry(Generic[Kind]):
    """A name and the configuration's class that stands behind it."""

    name: str
    kind: type[Kind]
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Those that have no default, and others that make it cheap to check."""
    image_size: int = 32
    """Height and width of the images that it is checked with [pixels]."""
    model: ModelConfig | None = None
    """Network that a speed-up is checked on; None: whichever small one of ours it accepts."""
    tag: str | None = None
    """Key of the name in YAML where it stands among the fields, as a data set's does."""

    @property
    def label(self) -> str:
        """Its class and name, which begin every message."""
        return f"`{self.kind.__name__}` (`{self.name}`)"

    def config(self) -> Kind:
        """Returns its configuration. Raises: ContractError if the fields do not make one."""
        with working(
            f"a configuration must be made of the fields {dict(self.fields)}",
            of=self.label,
            mend="Give defaults, or the fields that have none as"
            f" `fields={{'{self.name}': {{…}}}}` to the contracts.",
        ):
            return self.kind(**self.fields)


Contract = Callable[[Entry[Kind]], None]
"""Raises ContractError if an entry breaks it; its name says what must hold."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's random numbers within, and gives them back as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
