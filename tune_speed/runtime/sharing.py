"""A run's place among others on its physical device: who they are, and whose turn it is."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self

from tune_speed.core.config import Config
from tune_speed.core.records import StepTime, Timing
from tune_speed.core.words import Note, NoteKind
from tune_speed.runtime.cotenants import Tenancy
from tune_speed.runtime.process import MOST_DELAYED
from tune_speed.runtime.turnstile import LONGEST_PAUSE_S, Turnstile

NOBODY_STOOD = "no step could be timed while the co-tenants stood still"


class CotenantHistory(Config):
    """The co-tenants that a run had, as a checkpoint stores it."""

    cotenants: tuple[str, ...]
    windows: tuple[StepTime, ...] = ()
    isolates: bool
    why_not: str | None
    """Why co-tenants could not be seen or stopped; None if they could."""
    why_shared: str = NOBODY_STOOD


@dataclass(frozen=True, kw_only=True)
class KnownSteps:
    """What is known of a run's steps before it begins."""

    times: Sequence[StepTime] = ()
    """Isolated step times, which are not measured again …"""
    due: Collection[str] = ()
    """… but for those of these keys."""
    warm: set[str] | None = None
    """Throughput keys of steps that this process has taken, to which the run adds its own; None:
    each run is to warm up."""


class Sharing:
    """What a run knows of its co-tenants, and the turnstile that it shares with them."""

    def __init__(
        self,
        *,
        label: str,
        turnstile: Turnstile,
        tenancy: Tenancy | None = None,
        may_have_company: bool = False,
        steps: KnownSteps = KnownSteps(),
    ) -> None:
        """Looks around once. `label` is `study/trial`; without `tenancy` nobody sees the run."""
        self.label, self.turnstile = label, turnstile
        self.known = {step_time.key: step_time for step_time in steps.times}
        self.due = frozenset(steps.due)
        self.windows: list[StepTime] = []
        self.why_shared = NOBODY_STOOD
        """Why no step time of this run is isolated, where it is to be."""
        self.warm = steps.warm
        self.energy_j: Callable[[], float | None] = lambda: None
        """Reads the energy that its devices have used [J]; None: not known."""
        self.idle_power_w: float | None = None
        """Their power before the run, while all paused [W]; None: not known."""
        self._tenancy = tenancy
        self._seen: set[str] = set()
        self._why_not_earlier: str | None = None
        self.look()
        self.isolates = may_have_company or bool(self._seen)

    @classmethod
    @contextmanager
    def open(
        cls,
        device_key: str,
        *,
        study: str,
        trial: str,
        may_have_company: bool,
        steps: KnownSteps = KnownSteps(),
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> Iterator[Self]:
        turnstile = Turnstile.open(device_key, longest_pause_s=longest_pause_s)
        with ExitStack() as stack:
            yield cls(
                label=f"{study}/{trial}",
                turnstile=stack.enter_context(turnstile),
                tenancy=stack.enter_context(Tenancy.begin(device_key, study=study, trial=trial)),
                may_have_company=may_have_company,
                steps=steps,
            )

    @classmethod
    def alone(cls) -> Self:
        return cls(label="", turnstile=Turnstile(None, why_not="The run keeps to itself."))

    @property
    def usual(self) -> dict[str, float]:
        return {each.place: each.reference_s for each in self.known.values() if each.reference_s}

    def explain(self, why_shared: str) -> None:
        self.why_shared = why_shared

    def look(self) -> None:
        if self._tenancy is not None:
            self._seen.update(self._tenancy.others())

    def pids(self) -> Collection[int]:
        return self._tenancy.pids() if self._tenancy is not None else ()

    def seen_so_far(self) -> CotenantHistory:
        return CotenantHistory(
            cotenants=self.cotenants,
            windows=tuple(self.windows),
            isolates=self.isolates,
            why_not=self._why_not(),
            why_shared=self.why_shared,
        )

    def resume(self, earlier: CotenantHistory) -> None:
        self._seen.update(earlier.cotenants)
        self.windows[:0] = earlier.windows
        self.isolates = self.isolates or earlier.isolates
        self._why_not_earlier = earlier.why_not
        self.why_shared = earlier.why_shared

    @property
    def cotenants(self) -> tuple[str, ...]:
        return tuple(sorted(self._seen))

    def timing_of_clock(
        self, held_up_frac: Callable[[], float] = lambda: 0.0
    ) -> tuple[Timing, tuple[Note, ...]]:
        """Returns what a clock without isolated step times is worth, and why not more."""
        if why_not := self._why_not():
            return Timing.SHARED, (Note.of(NoteKind.UNSEEN, why=why_not),)
        is_known = self._tenancy is not None
        if is_known and self.isolates:
            return Timing.SHARED, (Note.of(NoteKind.OTHER, text=self.why_shared),)
        if is_known and self._seen:
            others = ", ".join(self.cotenants)
            return Timing.SHARED, (Note.of(NoteKind.OTHERS_CAME, others=others),)
        if (frac := held_up_frac()) > MOST_DELAYED:
            return Timing.DISTURBED, (Note.of(NoteKind.DISTURBED, share=frac),)
        return Timing.EXCLUSIVE, ()

    def _why_not(self) -> str | None:
        if self._tenancy is None:
            return None
        return self._why_not_earlier or self.turnstile.why_not or self._tenancy.why_not
