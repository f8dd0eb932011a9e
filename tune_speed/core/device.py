"""What trained: a type of device, how many of them, and the threads of a CPU."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from tune_speed.core import old_words
from tune_speed.core.config import Config
from tune_speed.core.words import IN_WORDS


class Device(Config):
    """Devices that train together, all of one type; `str` is their name."""

    model_config = ConfigDict(strict=False, extra="ignore")

    type: str
    """Such as `NVIDIA H200`, or a CPU's model: `AMD EPYC`."""
    count: Annotated[int, Field(gt=0)] = 1
    threads: Annotated[int, Field(ge=0)] | None = None
    """Of one operation on a CPU, 0 if that is not known; None: it is none."""

    @model_validator(mode="before")
    @classmethod
    def _read_name(cls, data: Any) -> Any:
        return old_words.read_device(data) if isinstance(data, str) else data

    @model_serializer(mode="wrap")
    def _dump(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
        return str(self) if info.context == IN_WORDS else handler(self)

    def __str__(self) -> str:
        one = f"cpu ({self.threads} threads, {self.type})" if self.threads else self.type
        return one if self.count == 1 else f"{self.count} x {one}"

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """What torch calls it."""
        return "cuda" if self.threads is None else "cpu"

    @property
    def one(self) -> Self:
        """One of them."""
        return self.model_copy(update={"count": 1})
