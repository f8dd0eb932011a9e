"""Which target is realistic: what the rest of a study's search is likely to bring."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.console import RenderableType
from rich.table import Table

from tune_speed.api.shown import Shown
from tune_speed.core.errors import ConfigError
from tune_speed.core.forecast import CHECKED_RATIO, LEAST_RUNS, Outlook, Range
from tune_speed.core.targets import Target
from tune_speed.core.text import chance_text, counted, duration
from tune_speed.reporting.study.reader import StudyReader
from tune_speed.reporting.watch.status import glance
from tune_speed.study.settings import parse_duration_s
from tune_speed.tracking.store.store import Store

SHARES = (0.25, 0.5, 1.0, 2.0)
"""Of the budget left, for which there is a forecast."""

CAUTION = f"Beyond {CHECKED_RATIO:g} times what was spent, 80 % intervals hold less."


class ByThen(NamedTuple):
    """What is likely after a share of the budget left."""

    share: float
    after_s: float
    """Seconds of searching from now on."""
    trials: float
    """Trials that end by then, at the pace so far."""
    chance: float
    """Probability that a trial has met the target."""
    best: Range
    """Best metric at the end of a trial, if the search is for it; `high` is the better end."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Forecasted(Shown):
    """What the rest of a search is likely to bring."""

    study: str
    target: Target
    met_by: str | None
    """The first trial that met the target; None: none did."""
    trials: int
    """Runs that went to their end, from which this follows."""
    best: float
    """Best metric at the end of one so far."""
    spent_s: float
    """Seconds of searching so far."""
    rows: tuple[ByThen, ...]
    """After a quarter, half and all of the budget left, and after twice as much."""
    first_hit_s: Range
    """Seconds of searching until a trial meets the target; infinite: not within the budget."""

    @classmethod
    def of(
        cls,
        store: Store,
        study: str,
        *,
        target: float | None = None,
        time_budget: str | float | None = None,
    ) -> "Forecasted":
        """Returns a study's forecast; `time_budget` is from now on. Raises: a TuneSpeedError."""
        seen = glance(StudyReader(store, study).read(with_boards=False))
        parts = seen.parts[:1]
        if target is not None and any(part.target.seeks_best for part in parts):
            raise ConfigError(f"--target must be left out: {study} seeks {parts[0].target.words}.")
        try:
            aims = [
                part.target.at(part.target.value if target is None else target) for part in parts
            ]
            left_s = seen.left_s if time_budget is None else parse_duration_s(time_budget)
        except ValueError as error:
            said = f"target {target:g}" if target is not None else f"time budget {time_budget}"
            # The first line of pydantic's says only how many mistakes there are.
            why = str(error).splitlines()[:2][-1].partition(" [type")[0].strip()
            raise ConfigError(f"{said} makes no sense: {why}") from None
        known = Outlook.of((t.record for t in parts[0].trials), aims[0]) if parts else None
        if known is None:
            raise ConfigError(
                f"a forecast needs {LEAST_RUNS} trials that went to their end, of a metric up to 1"
                f" or of one above 0 of which less is better, but {study} has none or fewer. Let it"
                " run on."
            )
        ratio = (left_s or seen.elapsed_s) / max(seen.elapsed_s, 1e-9)
        hit = known.law.ratios(known.fall, ratio)
        return cls(
            study=study,
            target=known.target,
            met_by=known.met_by,
            trials=known.runs,
            best=known.best,
            spent_s=seen.elapsed_s,
            rows=tuple(
                ByThen(
                    share=share,
                    after_s=share * ratio * seen.elapsed_s,
                    trials=share * ratio * seen.num_finished,
                    chance=known.chance(share * ratio),
                    best=Range(*map(known.metric, known.law.falls(share * ratio))),
                )
                for share in SHARES
            ),
            first_hit_s=Range(*(0.0 if known.met_by else each * seen.elapsed_s for each in hit)),
        )

    @property
    def chance(self) -> float:
        """Probability that the target is met within the budget left."""
        return next(row.chance for row in self.rows if row.share == 1.0)

    def __repr__(self) -> str:
        return f"Forecasted({self.study!r}: {self.target.words} {chance_text(self.chance)})"

    def parts(self) -> Sequence[RenderableType]:
        """Returns the chance in words, and a table by the budget."""
        metric = self.target.metric
        low, middle, high = ("later" if math.isinf(s) else duration(s) for s in self.first_hit_s)
        known = f"{counted(self.trials, 'whole run')}, best {metric} {self.best:.4f}"
        said = f"{self.target.words}: met by {self.met_by} ({known})"
        is_best = self.target.seeks_best
        if is_best:
            said = f"{self.target.words} ({known})"
        elif self.met_by is None:
            likely = f"{chance_text(self.chance)} likely within the budget left"
            said = f"{self.target.words}: {likely} ({known})"
            said += f"\nfirst hit in {middle} (80 %: {low} to {high})"
        chance = [] if is_best else ["chance"]
        table = Table("search for", "trials", *chance, f"best {metric}", "80 %", box=box.SIMPLE)
        for row in self.rows:
            low_end, high_end = sorted((row.best.low, row.best.high))
            table.add_row(
                duration(row.after_s),
                f"{row.trials:.0f}",
                *(chance_text(row.chance) for _ in chance),
                f"{row.best.middle:.4f}",
                f"{low_end:.4f}–{high_end:.4f}",
            )
        is_far = self.rows[-1].after_s > CHECKED_RATIO * self.spent_s
        return said, table, *([CAUTION] if is_far else [])

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures; an infinite time is None."""
        hit_s = {k: s if math.isfinite(s) else None for k, s in self.first_hit_s._asdict().items()}
        return {
            "study": self.study,
            "target": self.target.model_dump(mode="json", include={"metric", "value", "mode"}),
            "met_by": self.met_by,
            **{name: getattr(self, name) for name in ("trials", "best", "spent_s", "chance")},
            "first_hit_s": hit_s,
            "budgets": [{**row._asdict(), "best": row.best._asdict()} for row in self.rows],
        }
