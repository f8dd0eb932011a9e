"""One searched value: its range or choices, and when it plays a part."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from tune_speed.study.mistake import shown

Scalar = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A searched value by its dotted path, such as `optimizer.sgd.lr`."""

    name: str
    kind: Literal["int", "float", "categorical"]
    low: float | None = None
    """Least value, itself included; None for a categorical."""
    high: float | None = None
    """Greatest value, itself included."""
    log: bool = False
    """Proposed evenly over the logarithm."""
    step: float | None = None
    """Distance of neighbouring values from `low` on; None: 1 for `int`, none for `float`."""
    choices: tuple[Scalar, ...] = ()
    """Values of a categorical; no two are equal."""
    condition: Mapping[str, Scalar] = field(default_factory=dict, hash=False)
    """Values that other parameters must have for this one to play a part."""

    def is_active(self, params: Mapping[str, Any]) -> bool:
        """Returns whether the parameter plays a part among `params`."""
        return all(name in params and params[name] == v for name, v in self.condition.items())

    def values(self) -> "range | tuple[Scalar, ...] | None":
        """Returns all values in order; None for a float without `step`, which has too many."""
        if self.kind == "categorical":
            return self.choices
        assert self.low is not None and self.high is not None
        if self.kind == "int":
            return range(int(self.low), int(self.high) + 1, int(self.step or 1))
        return self._float_values() if self.step is not None else None

    def _float_values(self) -> tuple[float, ...]:
        low, high, step = (Decimal(str(v)) for v in (self.low, self.high, self.step))
        return tuple(float(low + step * k) for k in range(int((high - low) / step) + 1))

    def ends(self) -> tuple[Scalar, ...]:
        """Returns the outermost values: both ends of a range, or every choice."""
        if self.kind == "categorical":
            return self.choices
        return (self.low, self.high) if self.low != self.high else (self.low,)

    def read(self, value: Any) -> Any:
        """Returns `value`, as it comes back from JSON, in this parameter's type.

        Raises: ValueError if it is none of this parameter's values.
        """
        if self.kind == "categorical":
            return self._choice(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"must be a number, but got {shown(value)}")
        if not self._holds(value):
            raise ValueError(f"must be {self.text()}, but got {shown(value)}")
        return int(value) if self.kind == "int" else float(value)

    def _choice(self, value: Any) -> Scalar:
        for choice in self.choices:
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return choice
        raise ValueError(f"must be {self.text()}, but got {shown(value)}")

    def _holds(self, value: float) -> bool:
        assert self.low is not None and self.high is not None
        if not self.low <= value <= self.high:
            return False
        step = 1 if self.kind == "int" and self.step is None else self.step
        # 1e-8 of a step is what Optuna itself forgives rounding.
        return (
            step is None or abs((value - self.low) / step - round((value - self.low) / step)) < 1e-8
        )

    def text(self) -> str:
        """Returns the values in words, such as `from 0.1 to 1 (log)` or `one of 64, 128`."""
        if self.kind == "categorical":
            return "one of " + ", ".join(map(shown, self.choices))
        step = f" in steps of {self.step}" if self.step is not None else ""
        return f"from {self.low} to {self.high}{step}{' (log)' if self.log else ''}"
