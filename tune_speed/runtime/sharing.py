"""A run's place among others on its physical device: who they are, and whose turn it is."""

import json
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tune_speed.core.config import Config
from tune_speed.core.records import StepTime, Timing
from tune_speed.core.words import Note, NoteKind
from tune_speed.runtime import turnstile
from tune_speed.runtime.process import MOST_DELAYED
from tune_speed.runtime.turnstile import LONGEST_PAUSE_S, Turnstile

LONGEST_LABEL = 200
LARGEST_FILE_BYTES = 65_536
MOST_TRIES = 20


class Tenancy(AbstractContextManager["Tenancy"]):
    """The presence of one trial on a device. `why_not` says why it cannot be shown, else None."""

    def __init__(self, path: Path, file: int | None, *, why_not: str | None) -> None:
        self.why_not = why_not
        self._path = path
        self._file = file
        self._pid = os.getpid()
        turnstile.close_in_forks(self)

    @classmethod
    def begin(cls, device_key: str, *, study: str, trial: str, folder: Path | None = None) -> Self:
        """Shows `study/trial` as a device's tenant until closed; never raises without a folder."""
        place = folder or turnstile.default_folder()
        tenants = place / f"{turnstile.file_name(device_key)}.tenants"
        content = json.dumps({"study": study, "trial": trial, "pid": os.getpid()}).encode()
        try:
            turnstile.make_shared_folder(tenants.parent)
            turnstile.make_shared_folder(tenants)
            for _ in range(MOST_TRIES):
                name = f"{os.getpid()}-{turnstile.file_name(trial)}-{secrets.token_hex(4)}"
                path = tenants / name
                file = _show(path, content)
                if file is not None:
                    return cls(path, file, why_not=None)
            raise OSError("no file there stays")
        except OSError as error:
            return cls(tenants / "none", None, why_not=turnstile.reason(tenants.parent, error))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        self.why_not = self.why_not or "The tenancy is closed."
        if file is None:
            return
        # A forked child leaves its parent's presence alone.
        if os.getpid() == self._pid:
            _remove(self._path)
        os.close(file)

    def others(self) -> tuple[str, ...]:
        return tuple(sorted(self._others().values()))

    def pids(self) -> frozenset[int]:
        found = (name.partition("-")[0] for name in self._others())
        # In a container a tenant may be process 1, from which all descend outside.
        return frozenset(int(pid) for pid in found if pid.isdecimal() and pid != "1")

    def _others(self) -> dict[str, str]:
        if self.why_not:
            return {}
        try:
            paths = [path for path in self._path.parent.iterdir() if path != self._path]
            labels = {path.name: _label_if_alive(path) for path in paths}
        except OSError as error:
            self.why_not = turnstile.reason(self._path.parent.parent, error)
            return {}
        return {name: label for name, label in labels.items() if label is not None}


def _show(path: Path, content: bytes) -> int | None:
    """Returns the locked file, None if another took it for a dead trial's before it was locked."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        # Whatever the umask.
        os.fchmod(file, 0o644)
        # Before the lock: who finds it locked can read it.
        os.write(file, content)
        if turnstile.try_flock(file, turnstile.EXCLUSIVE) and os.fstat(file).st_nlink > 0:
            return file
        _remove(path)
    except OSError:
        _remove(path)
        os.close(file)
        raise
    os.close(file)
    return None


def _label_if_alive(path: Path) -> str | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        # It just ended, or is no tenant's file.
        return None
    try:
        if not turnstile.try_flock(file, turnstile.SHARED):
            return _label(os.read(file, LARGEST_FILE_BYTES), path.name)
        _remove(path)
    finally:
        os.close(file)
    return None


def _remove(path: Path) -> None:
    # Another user's, who removes it when next asking for co-tenants.
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _label(content: bytes, name: str) -> str:
    try:
        fields = json.loads(content)
        label = f"{fields['study']}/{fields['trial']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        label = f"?/{name}"
    # Other users wrote it: no line breaks, no codes that a terminal obeys.
    return "".join(sign if sign.isprintable() else "?" for sign in label)[:LONGEST_LABEL]


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
