"""What the rest of a search is likely to bring, as it is shown."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table

from tune_speed.api.shown import Shown
from tune_speed.core.text import counted, duration
from tune_speed.tuning.forecast import Forecast, forecast
from tune_speed.tuning.policy.forecast import Range

CAUTION = (
    "These are a model's guesses: 80 % intervals held about so often on modelled searches, and much"
    " less often on recorded ones (tests/benchmarks/README.md)."
)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Forecasted(Shown):
    """A forecast: `chance`, `first_hit_s`, and `rows` by the budget."""

    result: Forecast
    """The figures."""

    @classmethod
    def of(cls, uri: str, study: str, **options: Any) -> "Forecasted":
        """Returns the forecast of `tuning.forecast`. Raises: ConfigError, ServiceError."""
        return cls(result=forecast(uri, study, **options))

    @property
    def chance(self) -> float:
        """Probability that the target is met within the budget left."""
        return self.result.chance

    def __repr__(self) -> str:
        return f"Forecasted({self.result.study!r}: {self.result.target.words} {self.chance:.0%})"

    def parts(self) -> Sequence[RenderableType]:
        """Returns the chance in words, and a table by the budget."""
        found, metric = self.result, self.result.target.metric
        low, middle, high = ("later" if math.isinf(s) else duration(s) for s in found.first_hit_s)
        known = f"{counted(found.trials, 'trial')}, best {metric} {found.best:.4f}"
        if found.met_by is not None:
            said = f"{found.target.words}: met by {found.met_by} ({known})"
        else:
            said = (
                f"{found.target.words}: {found.chance:.0%} likely within the budget left"
                f" ({known})\n"
                f"first hit in {middle} (80 %: {low} to {high})"
            )
        table = Table("search for", "trials", "chance", f"best {metric}", "80 %", box=box.SIMPLE)
        for row in found.rows:
            ends = sorted((row.best.low, row.best.high))
            table.add_row(
                duration(row.after_s),
                f"{row.trials:.0f}",
                f"{row.chance:.0%}",
                f"{row.best.middle:.4f}",
                f"{ends[0]:.4f}–{ends[1]:.4f}",
            )
        return said, table, CAUTION

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures; an infinite time is None."""
        found = self.result
        return {
            "study": found.study,
            "target": found.target.model_dump(mode="json", include={"metric", "value", "mode"}),
            "met_by": found.met_by,
            "trials": found.trials,
            "best": found.best,
            "chance": found.chance,
            "first_hit_s": _finite(found.first_hit_s),
            "budgets": [{**row._asdict(), "best": row.best._asdict()} for row in found.rows],
        }


def _finite(times: Range) -> dict[str, float | None]:
    return {name: s if math.isfinite(s) else None for name, s in times._asdict().items()}
