"""Steps are timed while the co-tenants of a device are paused: a turnstile of `flock` files.

The kernel frees all locks of a process that dies. Four files a device:

| file         | held shared by                             | held exclusively by           |
|--------------|--------------------------------------------|-------------------------------|
| `main`       | trainers, while they train                 | who measures                  |
| `intent`     | busy work; trainers for a blink per step   | who measures, taken first     |
| `regardless` | who waited long enough and works unlocked  | who measures, for a blink     |
| `long`       | who looks, for a blink                     | who needs more time           |

Nobody waits longer than `PATIENCE_S` for another's measurement, or than its own `longest_pause_s`
while `long` is held; who continues regardless says so in the third file, so that a measurer knows
whether it was alone. Taking `main` again needs `intent`, so nobody returns in the middle of one.

`long` is held by who measures long steps, and by who waited in vain for the long step of another.
Trainers with long steps pause at it between two of them, those with short steps continue. All waits
poll and end. Without `flock`, or without a folder to write to, all calls do nothing.
"""

import errno
import fcntl
import hashlib
import os
import random
import re
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, Self

PATIENCE_S = 2.0
"""Longest pause of a trial for another's measurement [s]."""
LONG_STEP_S = 0.9
"""Who measures waits this long for steps to end [s]; about as much is then left to measure."""
TURN_S = PATIENCE_S - LONG_STEP_S
"""Who needs longer to measure says so [s]."""
LONGEST_PAUSE_S = 10.0
"""Longest pause of a trial for another's measurement that needs longer [s], by default."""
# Between two measurements in a row [s], so that all who waited for the first one resume.
GAP_S = 0.05
LOOK_EVERY_S = 0.02
"""A look costs 0.6 µs in an empty loop, but 9 µs between steps of 0.9 ms that used the caches up
(median of 4,000, one thread of a shared 2-core virtual machine): 1 % of them, so not every time."""
POLL_S, SLOWEST_POLL_S = 0.001, 0.02
BUSY_POLL_S = 0.005
FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 1.0, 8.0
"""After a step that was too long to wait for [s]; meanwhile all others continue."""

SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB
EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB

# Not the global one, which seeds of trials set and read.
_jitter = random.Random()


class Measurement:
    """A turn to measure; after its end, its figures are as of the end."""

    def __init__(
        self,
        *,
        began_s: float,
        nobody_continued: Callable[[], bool],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._began_s, self._patience_s = began_s, patience_s
        self._nobody_continued = nobody_continued
        self._at_end: tuple[float, bool] | None = None

    @property
    def left_s(self) -> float:
        """Seconds until others continue regardless; 0.0 once they may have."""
        if self._at_end is not None:
            return self._at_end[0]
        return max(0.0, self._patience_s - (time.monotonic() - self._began_s))

    @property
    def is_isolated(self) -> bool:
        """Whether all who take part were paused, from the first moment up to now."""
        if self._at_end is not None:
            return self._at_end[1]
        return self._nobody_continued() and self.left_s > 0

    def end(self) -> None:
        self._at_end = (self.left_s, self.is_isolated)


class Turnstile(AbstractContextManager["Turnstile"]):
    """One process's side of the turnstile of one device, for one thread only.

    `why_not` says why nothing can be isolated here; `waited_s` adds up all pauses for others.
    """

    def __init__(
        self,
        files: tuple[int, int, int, int] | None,
        *,
        why_not: str | None,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        self.why_not, self.longest_pause_s = why_not, longest_pause_s
        self.waited_s = 0.0
        self._files: tuple[int, ...] = files or ()
        self._main, self._intent, self._regardless, self._long = files or (-1, -1, -1, -1)
        self._num_training = self._num_busy = 0
        self._is_measuring = self._is_regardless = self._has_long_steps = False
        self._rest_until_s = self._next_look_s = 0.0
        close_in_forks(self)

    @classmethod
    def open(
        cls,
        device_key: str,
        *,
        folder: Path | None = None,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> Self:
        """Returns a physical device's turnstile; never raises for lack of a folder or `flock`."""
        folder = folder or default_folder()
        opened: list[int] = []
        try:
            make_shared_folder(folder)
            for role in ("main", "intent", "regardless", "long"):
                opened.append(_open_shared(folder / f"{file_name(device_key)}.{role}"))
            try_flock(opened[0], SHARED)
            fcntl.flock(opened[0], fcntl.LOCK_UN)
        except OSError as error:
            for file in opened:
                os.close(file)
            return cls(None, why_not=reason(folder, error))
        main, intent, regardless, long = opened
        files = (main, intent, regardless, long)
        return cls(files, why_not=None, longest_pause_s=longest_pause_s)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        files, self._files = self._files, ()
        self.why_not = self.why_not or "The turnstile is closed."
        for file in files:
            os.close(file)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Marks the block as training, which calls `pass_by` (or its halves) between steps."""
        self._num_training += 1
        try:
            self.wait()
            yield
        finally:
            self._num_training -= 1
            self._free_locks()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keeps measurements from beginning during the block, which cannot pause."""
        self._num_busy += 1
        try:
            self.wait()
            yield
        finally:
            self._num_busy -= 1
            self._free_locks()

    def must_wait(self) -> bool:
        """Returns whether somebody wants to measure; looks at most once in `LOOK_EVERY_S`."""
        if not self._num_training or self._num_busy or self._is_measuring or self.why_not:
            return False
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return False
        self._has_long_steps = now_s > self._next_look_s + LONG_STEP_S
        if self._is_regardless:
            self.wait()
        elif self._must_stand() or not self._lock(self._intent, SHARED):
            return True
        else:
            self._unlock(self._intent)
        self._next_look_s = now_s + LOOK_EVERY_S
        return False

    def pass_by(self) -> float:
        """Returns the seconds of the pause between two steps, 0.0 where nobody measures."""
        return self.wait() if self.must_wait() else 0.0

    @contextmanager
    def measuring(
        self, *, patience_s: float, needs_s: float = TURN_S
    ) -> Iterator[Measurement | None]:
        """Yields once all others are paused, or None if that took longer than `patience_s`.

        Who needs more than `TURN_S` gets up to `longest_pause_s`, steps of others that have to end
        before included. A measurement within another of the same process gets None too. Own work
        counts as paused until the block ends; `waited_s` leaves that time out.
        """
        if self.why_not or self._is_measuring:
            yield None
            return
        measurement = None
        self._is_measuring = True
        try:
            measurement = self._take_turn(time.monotonic() + patience_s, needs_s)
            yield None if self.why_not else measurement
        finally:
            if measurement is not None:
                measurement.end()
                self._rest_until_s = time.monotonic() + GAP_S
            self._unlock_all()
            self._is_measuring = False
            self.wait()

    def _take_turn(self, deadline_s: float, needs_s: float) -> Measurement | None:
        # Own shared locks would keep the exclusive ones out.
        self._unlock_all()
        is_long, back_off_s = needs_s > TURN_S, FIRST_BACK_OFF_S
        long_s: float | None = None
        _sleep_until(min(self._rest_until_s, deadline_s))
        while self._take_intent(deadline_s):
            began_s, pause_s = time.monotonic(), GAP_S
            if is_long:
                long_s = self._begin_long(long_s)
            if self._nobody_continued() and not (is_long and long_s is None):
                if self._poll(self._main, EXCLUSIVE, min(began_s + LONG_STEP_S, deadline_s)):
                    return self._turn(began_s, long_s, is_long=is_long)
                pause_s = back_off_s * _jitter.uniform(0.5, 1.0)
                back_off_s = min(2 * back_off_s, LONGEST_BACK_OFF_S)
                # From now on those with long steps stand still after the present one.
                long_s = self._begin_long(long_s)
            if long_s is not None:
                deadline_s = min(deadline_s, long_s + self.longest_pause_s - needs_s)
            self._unlock(self._intent)
            if time.monotonic() >= deadline_s:
                return None
            _sleep_until(min(time.monotonic() + pause_s, deadline_s))
        return None

    def _begin_long(self, since_s: float | None) -> float | None:
        """Returns since when `long` is held, at best from now on; None if it is another's."""
        if since_s is None and self._poll(self._long, EXCLUSIVE, time.monotonic() + GAP_S):
            return time.monotonic()
        return since_s

    def _turn(self, began_s: float, long_s: float | None, *, is_long: bool) -> Measurement:
        patience_s = PATIENCE_S
        if long_s is not None and is_long:
            began_s, patience_s = long_s, self.longest_pause_s
        elif long_s is not None:
            # Nobody need have more patience than usual from now on.
            self._unlock(self._long)
            began_s = min(began_s, long_s + self.longest_pause_s - PATIENCE_S)
        return Measurement(
            began_s=began_s, nobody_continued=self._nobody_continued, patience_s=patience_s
        )

    def _take_intent(self, deadline_s: float) -> bool:
        while not self._lock(self._intent, EXCLUSIVE):
            if time.monotonic() >= deadline_s:
                return False
            # Busy work, or the blink of a trainer.
            if self._lock(self._intent, SHARED):
                self._unlock(self._intent)
                time.sleep(BUSY_POLL_S)
                continue
            # Another measures. Who waits for it comes in before the next measurement begins.
            if self._poll(self._intent, SHARED, deadline_s):
                self._unlock(self._intent)
            _sleep_until(min(time.monotonic() + GAP_S, deadline_s))
        return self.why_not is None

    def _nobody_continued(self) -> bool:
        if not self._lock(self._regardless, EXCLUSIVE):
            return False
        self._unlock(self._regardless)
        return self.why_not is None

    def _is_long_held(self) -> bool:
        if not self._lock(self._long, SHARED):
            return True
        self._unlock(self._long)
        return False

    def _must_stand(self) -> bool:
        return self._has_long_steps and not self._is_regardless and self._is_long_held()

    def wait(self) -> float:
        """Pauses while another run measures, with the device idle; returns for how long [s]."""
        is_idle = not self._num_training and not self._num_busy
        if self.why_not or self._is_measuring or is_idle:
            return 0.0
        began_s = time.monotonic()
        latest_s = began_s + self.longest_pause_s
        if self._must_stand():
            self._unlock(self._main)
            if self._poll(self._long, SHARED, latest_s):
                self._unlock(self._long)
        # Who continued regardless has waited for this measurement already.
        patience_s = 0.0 if self._is_regardless else PATIENCE_S
        deadline_s = min(time.monotonic() + patience_s, latest_s)
        if not self._lock(self._intent, SHARED):
            self._unlock(self._main)
            if not self._wait_for_intent(deadline_s, latest_s):
                return self._continue_regardless(began_s)
        # Who holds `intent` finds `main` free, but for the moment in which a measurer dies.
        deadline_s = max(deadline_s, time.monotonic() + GAP_S)
        if self._num_training and not self._poll(self._main, SHARED, deadline_s):
            self._unlock(self._intent)
            return self._continue_regardless(began_s)
        self._leave_regardless()
        if not self._num_busy:
            self._unlock(self._intent)
        return self._count(began_s)

    def _wait_for_intent(self, deadline_s: float, latest_s: float) -> bool:
        if self._poll(self._intent, SHARED, deadline_s):
            return True
        if self._is_regardless or not self._is_long_held():
            return False
        return self._poll(self._intent, SHARED, latest_s)

    def _continue_regardless(self, began_s: float) -> float:
        if not self._is_regardless:
            self._is_regardless = True
            # Measurers hold it for a blink only.
            self._poll(self._regardless, SHARED, time.monotonic() + GAP_S)
        return self._count(began_s)

    def _leave_regardless(self) -> None:
        if self._is_regardless:
            self._is_regardless = False
            self._unlock(self._regardless)

    def _count(self, began_s: float) -> float:
        now_s = time.monotonic()
        self._next_look_s = now_s + LOOK_EVERY_S
        self.waited_s += now_s - began_s
        return now_s - began_s

    def _free_locks(self) -> None:
        if self._is_measuring:
            return
        if not self._num_training:
            self._unlock(self._main)
        if not self._num_busy:
            self._unlock(self._intent)
        if not self._num_training and not self._num_busy:
            self._leave_regardless()

    def _unlock_all(self) -> None:
        # `main` first: who then takes `intent` finds it free.
        for file in (self._main, self._intent, self._regardless, self._long):
            self._unlock(file)
        self._is_regardless = False

    def _poll(self, file: int, operation: int, deadline_s: float) -> bool:
        pause_s = POLL_S
        while not self._lock(file, operation):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(pause_s, left_s))
            pause_s = min(1.05 * pause_s, SLOWEST_POLL_S)
        return True

    def _lock(self, file: int, operation: int) -> bool:
        # The numbers may be those of other files by now.
        if not self._files:
            return True
        try:
            fcntl.flock(file, operation)
        except BlockingIOError:
            return False
        except OSError as error:
            self._break(error)
        return True

    def _unlock(self, file: int) -> None:
        if not self._files:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_UN)
        except OSError as error:
            self._break(error)

    def _break(self, error: OSError) -> None:
        self.why_not = f"The turnstile cannot lock its files any more: {error}."
        # What it still holds would keep others from measuring.
        self.close()


class Closable(Protocol):
    """What holds a lock for as long as it is open."""

    def close(self) -> None: ...


_closed_in_forks: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def close_in_forks(holder: Closable) -> None:
    """Has forked children close `holder`, which would else live on in them when we are killed."""
    _closed_in_forks.add(holder)


def _close_all() -> None:
    for holder in list(_closed_in_forks):
        holder.close()


os.register_at_fork(after_in_child=_close_all)


def default_folder() -> Path:
    chosen = os.environ.get("TUNE_SPEED_TURNSTILE")
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / "tune_speed-turnstile"


def make_shared_folder(folder: Path) -> None:
    """Makes a folder in which all may make files, and remove their own. Raises: OSError."""
    # One that is there serves, whoever made it: nothing in it is trusted but that a file is locked.
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        status = folder.lstat()
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
            raise OSError(errno.EPERM, "it is a symbolic link of another user") from None
        return
    folder.chmod(0o1777)


def file_name(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}", text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', text)[:60]}-{digest[:12]}"


def reason(folder: Path, error: OSError) -> str:
    return (
        f"{folder} must be a writable folder on a file system with flock, but: {error}. Set"
        " TUNE_SPEED_TURNSTILE to a folder that is, the same for all trials of this machine."
    )


def try_flock(file: int, operation: int) -> bool:
    """Returns whether the lock was to be had at once. Raises: OSError: there is no `flock`."""
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        return False
    return True


def _open_shared(path: Path) -> int:
    # Locking needs no right to write. O_CREAT on another user's file fails in sticky folders
    # (fs.protected_regular), O_NONBLOCK keeps a pipe of that name from blocking us.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return os.open(path, flags)
    # Whatever the umask.
    os.fchmod(file, 0o644)
    return file


def _sleep_until(moment_s: float) -> None:
    time.sleep(max(0.0, moment_s - time.monotonic()))
