"""What trained: a type of device, how many of them, and the threads of a CPU."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from tune_speed.core.old_words import read_device
from tune_speed.core.words import Worded


class Device(Worded):
    """Devices that train together, all of one type; `str` is their name."""

    type: str
    """Such as `NVIDIA H200`, or a CPU's model: `AMD EPYC`."""
    count: Annotated[int, Field(gt=0)] = 1
    threads: Annotated[int, Field(ge=0)] | None = None
    """Of one operation on a CPU, 0 if that is not known; None: it is none."""

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        return read_device(text)

    def __str__(self) -> str:
        one = f"cpu ({self.threads} threads, {self.type})" if self.threads else self.type
        return one if self.count == 1 else f"{self.count} x {one}"

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """What torch calls it."""
        return "cuda" if self.threads is None else "cpu"

    @property
    def one(self) -> Self:
        return self.model_copy(update={"count": 1})
