"""With real processes: the actors below train, measure or are busy until they are killed."""

import errno
import fcntl
import hashlib
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.imports import imported
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tune_speed.runtime import turnstile as turnstile_module
from tune_speed.runtime.turnstile import (
    LOOK_EVERY_S,
    PATIENCE_S,
    Turnstile,
    default_folder,
    file_name,
)

KEY = "GPU-1"
ROLES = ("intent", "main", "regardless", "long")
LATE_S = 0.5
"""How much later than planned a busy machine may wake a process."""
ACTORS = r"""
import mmap, random, struct, sys, time
from pathlib import Path
from tune_speed.runtime import turnstile
from tune_speed.runtime.turnstile import Turnstile

role, folder, state, seconds = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
turnstile.PATIENCE_S, turnstile.LONG_STEP_S, longest_pause_s = map(float, sys.argv[5:])
turnstile = Turnstile.open("GPU-1", folder=folder, longest_pause_s=longest_pause_s)
file = open(state, "r+b")
numbers = mmap.mmap(file.fileno(), 16)
end = time.monotonic() + 30
steps, longest = 0, 0.0

def write():
    numbers[:] = struct.pack("qd", steps, longest)

def step():
    global steps, longest
    longest = max(longest, turnstile.pass_by())
    steps += 1  # begun
    write()
    time.sleep(seconds)

print("here", flush=True)
if role == "trainer":
    with turnstile.training():
        while time.monotonic() < end:
            step()
if role == "measurer":
    with turnstile.measuring(patience_s=10) as turn:
        steps = 1
        write()
        time.sleep(seconds)
        print("isolated" if turn.is_isolated else "spoiled", flush=True)
if role == "busy":
    with turnstile.busy():
        steps, longest = 1, turnstile.waited_s
        write()
        time.sleep(seconds)
if role == "both":
    end, seconds = time.monotonic() + seconds, 0.002
    while time.monotonic() < end:
        with turnstile.training():
            for _ in range(random.randrange(30)):
                step()
            with turnstile.measuring(patience_s=0.5) as turn:
                time.sleep(0.01)
                print("none" if turn is None else turn.is_isolated, flush=True)
"""


@dataclass(frozen=True)
class Actor:
    process: "subprocess.Popen[str]"
    state: Path

    @property
    def steps(self) -> int:
        return int(struct.unpack("qd", self.state.read_bytes())[0])

    @property
    def longest_wait_s(self) -> float:
        return float(struct.unpack("qd", self.state.read_bytes())[1])

    def says(self, line: str) -> bool:
        assert self.process.stdout is not None
        return self.process.stdout.readline() == f"{line}\n"

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


Cast = Callable[[str, float], Actor]


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    """Starts an actor: its role, and the seconds of a step or of its work."""
    actors: list[Actor] = []

    def start(role: str, seconds: float) -> Actor:
        state = tmp_path / f"actor-{len(actors)}"
        state.write_bytes(bytes(16))
        places = (str(tmp_path), str(state))
        waits = [getattr(turnstile_module, f"{x}_S") for x in ("PATIENCE", "LONG_STEP")]
        times = map(str, (seconds, *waits, turnstile_module.LONGEST_PAUSE_S))
        command = [sys.executable, "-c", ACTORS, role, *places, *times]
        actors.append(Actor(subprocess.Popen(command, stdout=subprocess.PIPE, text=True), state))
        return actors[-1]

    yield start
    for actor in actors:
        actor.process.kill()
        actor.process.communicate()


@pytest.fixture
def turnstile(tmp_path: Path) -> Iterator[Turnstile]:
    with Turnstile.open(KEY, folder=tmp_path) as opened:
        assert opened.why_not is None
        yield opened


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def runs(actor: Actor, *, for_s: float = 10) -> bool:
    before = actor.steps
    return within(for_s, lambda: actor.steps > before)


def test_trainers_stand_still_during_a_measurement_and_then_go_on(
    cast: Cast, turnstile: Turnstile
) -> None:
    trainers = [cast("trainer", 0.005), cast("trainer", 0.005)]
    assert all(map(runs, trainers))
    with turnstile.measuring(patience_s=5) as turn:
        assert turn is not None
        before = [trainer.steps for trainer in trainers]
        time.sleep(0.3)
        assert [trainer.steps for trainer in trainers] == before
        assert turn.is_isolated and turn.left_s < PATIENCE_S - 0.3
    assert all(runs(trainer, for_s=LATE_S) for trainer in trainers)
    assert all(0.25 < trainer.longest_wait_s < PATIENCE_S for trainer in trainers)


def test_a_trial_that_begins_during_a_measurement_waits_for_its_end(
    cast: Cast, turnstile: Turnstile
) -> None:
    with turnstile.measuring(patience_s=1) as turn:
        trainer, busy = cast("trainer", 0.005), cast("busy", 5)
        assert trainer.says("here") and busy.says("here")
        time.sleep(0.2)
        assert turn is not None and turn.is_isolated and trainer.steps == busy.steps == 0
    assert within(10, lambda: trainer.steps > 0 and busy.steps > 0)


def test_a_killed_measurer_frees_trainers_at_once(cast: Cast) -> None:
    trainer = cast("trainer", 0.005)
    assert runs(trainer)
    measurer = cast("measurer", 30)
    assert within(10, lambda: measurer.steps == 1)
    measurer.kill()
    assert runs(trainer, for_s=LATE_S)
    assert trainer.longest_wait_s < LATE_S


@pytest.mark.parametrize("role", ["trainer", "busy"])
def test_a_killed_holder_frees_the_measurer(cast: Cast, turnstile: Turnstile, role: str) -> None:
    holder = cast(role, 30)  # A trainer's first step takes longer than anybody's patience.
    assert within(10, lambda: holder.steps == 1) and not can_measure(turnstile)
    holder.kill()
    assert can_measure(turnstile)


def can_measure(turnstile: Turnstile) -> bool:
    with turnstile.measuring(patience_s=0) as turn:
        return turn is not None and turn.is_isolated


def test_a_trainer_that_dies_while_it_waits_harms_nobody(cast: Cast, turnstile: Turnstile) -> None:
    dying, trainer = cast("trainer", 0.005), cast("trainer", 0.005)
    assert runs(dying) and runs(trainer)
    with turnstile.measuring(patience_s=5) as turn:
        time.sleep(0.1)
        dying.kill()
        time.sleep(0.1)
        assert turn is not None and turn.is_isolated
    assert runs(trainer, for_s=LATE_S)
    with turnstile.measuring(patience_s=2) as turn:
        assert turn is not None


@pytest.mark.slow
def test_a_measurer_that_takes_too_long_is_left_behind_and_knows_it(
    cast: Cast, turnstile: Turnstile
) -> None:
    trainer = cast("trainer", 0.005)
    assert runs(trainer)
    with turnstile.measuring(patience_s=5) as turn:
        assert turn is not None and turn.is_isolated
        time.sleep(0.1)
        assert runs(trainer, for_s=PATIENCE_S + LATE_S) and trainer.longest_wait_s > 1.8
        time.sleep(4 - PATIENCE_S)
        assert not turn.is_isolated and turn.left_s == 0
        assert runs(trainer, for_s=0.1)
    assert not turn.is_isolated and trainer.longest_wait_s < PATIENCE_S + LATE_S
    with turnstile.measuring(patience_s=5) as again:  # The trainer came back to the lock.
        time.sleep(0.02)
        assert again is not None and again.is_isolated and not runs(trainer, for_s=0.2)


def test_patience_that_ends_in_the_second_of_two_measurements_spoils_it(
    cast: Cast, turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnstile_module, "PATIENCE_S", 1.0)
    trainer = cast("trainer", 0.005)
    assert runs(trainer)
    with turnstile.measuring(patience_s=5) as turn:
        assert turn is not None
        turn._began_s += 0.9  # As if so long had been another's measurement.
        assert within(1.0 + LATE_S, lambda: not turn.is_isolated)
        assert turn.left_s > 0.1


def test_the_second_of_two_measurements_in_a_row_lets_trainers_in_between(
    cast: Cast, turnstile: Turnstile
) -> None:
    trainer = cast("trainer", 0.001)
    assert runs(trainer)
    for _ in range(3):
        before = trainer.steps
        with turnstile.measuring(patience_s=5) as turn:
            assert turn is not None and turn.is_isolated
            time.sleep(0.15)
        with turnstile.measuring(patience_s=5):
            assert trainer.steps > before + 1
    assert 0.1 < trainer.longest_wait_s < 0.15 + LATE_S


def test_two_measurers_exclude_one_another(cast: Cast, turnstile: Turnstile) -> None:
    measurer = cast("measurer", 0.6)
    assert measurer.says("here") and within(10, lambda: measurer.steps == 1)
    assert not can_measure(turnstile)
    with turnstile.measuring(patience_s=5) as turn:
        assert turn is not None and turn.is_isolated
        assert measurer.says("isolated")


def test_busy_work_keeps_measurements_out_and_lets_trainers_pass(
    cast: Cast, turnstile: Turnstile
) -> None:
    busy, trainer = cast("busy", 30), cast("trainer", 0.005)
    assert within(10, lambda: busy.steps == 1) and runs(trainer)
    with turnstile.measuring(patience_s=0.2) as turn:
        assert turn is None
    assert trainer.longest_wait_s == 0 and runs(trainer, for_s=LATE_S)
    busy.kill()
    with turnstile.measuring(patience_s=5) as turn:
        assert turn is not None and turn.is_isolated


def test_a_long_step_of_one_trainer_does_not_hold_up_the_others(
    cast: Cast, turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnstile_module, "LONG_STEP_S", 0.2)
    slow, quick = cast("trainer", 30), cast("trainer", 0.005)
    assert runs(quick) and within(10, lambda: slow.steps == 1)
    with turnstile.measuring(patience_s=1.2) as turn:
        assert turn is None
    assert slow.steps == 1 and runs(quick, for_s=LATE_S)
    assert 0.15 < quick.longest_wait_s < 0.2 + LATE_S


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Turnstile]:
    """Where all waits are shorter, so that steps of half a second are long."""
    waits = {"PATIENCE": 0.8, "LONG_STEP": 0.3, "TURN": 0.5, "LONGEST_PAUSE": 3.0}
    for name, seconds in (waits | {"FIRST_BACK_OFF": 0.5}).items():
        monkeypatch.setattr(turnstile_module, f"{name}_S", seconds)
    with Turnstile.open(KEY, folder=tmp_path, longest_pause_s=3.0) as opened:
        yield opened


def test_who_needs_longer_gets_it_and_not_for_ever(cast: Cast, impatient: Turnstile) -> None:
    trainer = cast("trainer", 0.005)
    assert runs(trainer)
    with impatient.measuring(patience_s=2, needs_s=1.5) as turn:
        assert turn is not None
        time.sleep(1.5)
        assert turn.is_isolated and turn.left_s > 1.0
    assert runs(trainer, for_s=LATE_S) and 1.4 < trainer.longest_wait_s < 1.5 + LATE_S
    with impatient.measuring(patience_s=2, needs_s=1.5) as turn:
        assert turn is not None
        time.sleep(3.2)
        assert not turn.is_isolated and turn.left_s == 0
        assert runs(trainer, for_s=LATE_S)
    assert 2.9 < trainer.longest_wait_s < 3.0 + LATE_S


def test_who_needs_less_gets_no_more_than_usual(cast: Cast, impatient: Turnstile) -> None:
    trainer = cast("trainer", 0.005)
    assert runs(trainer)
    with impatient.measuring(patience_s=2, needs_s=0.3) as turn:
        assert turn is not None
        time.sleep(0.1)
        assert runs(trainer, for_s=0.8 + LATE_S) and not turn.is_isolated
    assert trainer.longest_wait_s < 0.8 + LATE_S


@pytest.mark.parametrize("needs_s", [0.3, 1.0])
def test_all_with_long_steps_stand_still_together_while_others_go_on(
    cast: Cast, impatient: Turnstile, needs_s: float
) -> None:
    slow, slower, quick = (cast("trainer", seconds) for seconds in (0.6, 0.9, 0.005))
    assert all(within(10, lambda each=each: each.steps > 1) for each in (slow, slower, quick))
    for _ in range(2):
        with impatient.measuring(patience_s=5, needs_s=needs_s) as turn:
            assert turn is not None
            before = slow.steps, slower.steps, quick.steps
            time.sleep(needs_s)
            assert turn.is_isolated and turn.left_s > 0
            assert before == (slow.steps, slower.steps, quick.steps)
        assert runs(quick, for_s=LATE_S) and runs(slow, for_s=2) and runs(slower, for_s=2)
    assert quick.longest_wait_s < 0.3 + needs_s + LATE_S
    assert all(each.longest_wait_s < 3.0 + LATE_S for each in (slow, slower))


def test_a_killed_measurer_frees_those_with_long_steps(cast: Cast, impatient: Turnstile) -> None:
    slow, measurer = cast("trainer", 0.6), cast("measurer", 30)
    assert within(10, lambda: slow.steps > 1 and measurer.steps == 1)
    measurer.kill()
    assert runs(slow, for_s=1.2) and runs(slow, for_s=1.2) and can_measure_long(impatient)


def can_measure_long(turnstile: Turnstile) -> bool:
    with turnstile.measuring(patience_s=2, needs_s=1.0) as turn:
        return turn is not None and turn.is_isolated


def test_of_two_who_need_longer_one_waits_for_the_other(
    cast: Cast, impatient: Turnstile, tmp_path: Path
) -> None:
    with Turnstile.open(KEY, folder=tmp_path) as other:
        with other.measuring(patience_s=2, needs_s=1.0) as turn:
            assert turn is not None and not can_measure_long(impatient) and turn.is_isolated
        assert can_measure_long(impatient)
        fcntl.flock(other._long, fcntl.LOCK_EX)
        assert not can_measure_long(impatient)
        with impatient.measuring(patience_s=0.1, needs_s=0.3) as turn:
            assert turn is not None


@pytest.mark.parametrize("needs_s", [0.3, 1.0])
def test_a_step_that_does_not_end_keeps_nobody_standing_for_longer_than_a_pause(
    cast: Cast, impatient: Turnstile, needs_s: float
) -> None:
    endless, slow = cast("trainer", 30), cast("trainer", 0.6)
    assert within(10, lambda: endless.steps == 1 and slow.steps > 1)
    began_s = time.monotonic()
    with impatient.measuring(patience_s=8, needs_s=needs_s) as turn:
        assert turn is None and time.monotonic() - began_s < 0.3 + 3.0 - needs_s + LATE_S
    assert runs(slow, for_s=LATE_S) and slow.longest_wait_s < 3.0 - needs_s + 2 * LATE_S
    assert slow.longest_wait_s > 1.0


@pytest.mark.parametrize("role", ["training", "busy"])
def test_own_work_stands_still_while_a_process_measures(
    tmp_path: Path, turnstile: Turnstile, role: str
) -> None:
    with Turnstile.open(KEY, folder=tmp_path) as other, getattr(turnstile, role)():
        assert not can_measure(other)
        with turnstile.measuring(patience_s=0) as turn:
            assert turn is not None and turn.is_isolated
            assert turnstile.pass_by() == 0 and turnstile.wait() == 0
            with turnstile.measuring(patience_s=0) as inner:
                assert inner is None
            assert turn.is_isolated and not can_measure(other)
        assert not can_measure(other)
    with Turnstile.open(KEY, folder=tmp_path) as other:
        assert can_measure(other)


def test_a_poll_is_clean_and_waiting_is_counted(
    tmp_path: Path, turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience_s = 0.6
    monkeypatch.setattr(turnstile_module, "PATIENCE_S", patience_s)
    with Turnstile.open(KEY, folder=tmp_path) as other, turnstile.training():
        assert not turnstile.must_wait() and turnstile.pass_by() == 0
        with turnstile.busy():
            assert not turnstile.must_wait()
        with ExitStack() as stack:
            time.sleep(LOOK_EVERY_S)
            fcntl.flock(other._intent, fcntl.LOCK_EX)
            stack.callback(fcntl.flock, other._intent, fcntl.LOCK_UN)
            assert turnstile.must_wait() and turnstile.must_wait()
            before_s = turnstile.waited_s
            assert patience_s <= turnstile.wait() < patience_s + LATE_S / 2
            assert turnstile.waited_s - before_s >= patience_s
            assert not turnstile.must_wait()  # It waited for this one already.
            assert turnstile.waited_s - before_s < patience_s + LATE_S / 2
            assert turnstile.pass_by() == 0 and not other._nobody_continued()
        time.sleep(LOOK_EVERY_S)
        assert not turnstile.must_wait() and other._nobody_continued()


OPERATIONS = ["training", "busy", "measuring", "leave", "must_wait", "wait", "pass_by"]


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(operations=st.lists(st.sampled_from(OPERATIONS), max_size=14), seed=st.integers(0, 99))
def test_no_order_of_calls_makes_a_process_wait_for_itself(
    tmp_path: Path, operations: list[str], seed: int
) -> None:
    choose = random.Random(seed)
    with (
        Turnstile.open(KEY, folder=tmp_path) as turnstile,
        Turnstile.open(KEY, folder=tmp_path) as witness,
    ):
        began_s = time.monotonic()
        inside: list[tuple[str, AbstractContextManager[object]]] = []

        def leave() -> None:
            # Any of the blocks, not the innermost only.
            inside.pop(choose.randrange(len(inside)))[1].__exit__(None, None, None)

        for operation in operations:
            if operation == "leave":
                if inside:
                    leave()
            elif operation == "measuring":
                inside.append((operation, turnstile.measuring(patience_s=0.2)))
                inside[-1][1].__enter__()
            elif operation in ("training", "busy"):
                inside.append((operation, getattr(turnstile, operation)()))
                inside[-1][1].__enter__()
            else:
                turnstile._next_look_s = 0.0
                assert not getattr(turnstile, operation)() or operation == "wait"
            assert can_measure(witness) == (not inside or is_only_refused(inside, turnstile))
        while inside:
            leave()
        assert can_measure(witness) and turnstile.waited_s < 0.05
        assert time.monotonic() - began_s < 2


def is_only_refused(
    inside: list[tuple[str, AbstractContextManager[object]]], turnstile: Turnstile
) -> bool:
    """Measurements within a measurement outlive it here, without a lock."""
    return {name for name, _ in inside} == {"measuring"} and not turnstile._is_measuring


@pytest.mark.slow
def test_turns_are_taken_without_a_deadlock(cast: Cast) -> None:
    actors = [cast("both", 3) for _ in range(3)]
    assert all(actor.says("here") for actor in actors)
    outputs = [actor.process.communicate(timeout=20)[0].split() for actor in actors]
    assert all(actor.process.returncode == 0 and actor.steps > 20 for actor in actors)
    assert all(actor.longest_wait_s < PATIENCE_S + LATE_S for actor in actors)
    assert all("True" in output and "False" not in output for output in outputs)


def test_a_forked_child_keeps_no_lock_of_its_dead_parent(
    cast: Cast, turnstile: Turnstile, tmp_path: Path
) -> None:
    script = f"""
import os, subprocess, sys, time
from pathlib import Path
from tune_speed.runtime.turnstile import Turnstile
turnstile = Turnstile.open("{KEY}", folder=Path({str(tmp_path)!r}))
with turnstile.measuring(patience_s=1), turnstile.training():
    child = os.fork()
    if child == 0:
        os.closerange(0, 1)
        print(turnstile.why_not, turnstile.pass_by(), flush=True)
        time.sleep(3)
        os._exit(0)
    time.sleep(30)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "The turnstile is closed. 0.0\n"
    assert not can_measure(turnstile)
    parent.kill()
    parent.wait(10)
    assert can_measure(turnstile)
    parent.stdout.close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_without_flock_it_says_so_and_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    turnstile = Turnstile.open(KEY, folder=tmp_path)
    assert turnstile.why_not is not None
    assert "file system with flock, but: [Errno" in turnstile.why_not
    does_nothing(turnstile)


def test_flock_that_fails_later_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turnstile: Turnstile
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with Turnstile.open(KEY, folder=tmp_path) as other:
        with turnstile.measuring(patience_s=1) as turn, turnstile.training():
            with monkeypatch.context() as patch:
                patch.setattr(fcntl, "flock", refuse)
                assert turn is not None and not turn.is_isolated
            does_nothing(turnstile)
        assert "cannot lock its files any more" in str(turnstile.why_not) and can_measure(other)


def does_nothing(turnstile: Turnstile) -> None:
    with turnstile.training(), turnstile.busy():
        assert not turnstile.must_wait() and turnstile.wait() == turnstile.pass_by() == 0
        with turnstile.measuring(patience_s=5) as turn:
            assert turn is None
    turnstile.close()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        turnstile = Turnstile.open(KEY, folder=folder)
        assert f"{folder} must be a writable folder" in str(turnstile.why_not)
        does_nothing(turnstile)


def test_users_share_a_folder_whatever_their_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_SPEED_TURNSTILE", str(tmp_path / "shared"))
    before = os.umask(0o077)
    try:
        Turnstile.open(KEY).close()
    finally:
        os.umask(before)
    assert default_folder().stat().st_mode & 0o7777 == 0o1777
    files = sorted(default_folder().iterdir())
    assert [file.name for file in files] == [f"{KEY}.{x}" for x in sorted(ROLES)]
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o644
        file.chmod(0o444)  # As another user sees it.
    with Turnstile.open(KEY) as again:
        assert again.why_not is None and can_measure(again)


@given(texts=st.sets(st.text(max_size=100), min_size=2, max_size=2))
def test_any_two_keys_have_file_names_of_their_own(texts: set[str]) -> None:
    names = {file_name(text) for text in texts}
    assert len(names) == 2
    assert all(name and name[0] != "." and "/" not in name and len(name) < 100 for name in names)


def test_the_module_needs_no_torch() -> None:
    code = "import tune_speed.runtime.turnstile, tune_speed.runtime.sharing"
    assert imported(code, "torch") == set()


def test_file_name_of_any_text_is_what_files_may_have_and_a_digest() -> None:
    assert file_name("cpu-0_a.b") == "cpu-0_a.b" and file_name("a" * 80) == "a" * 80
    digest = hashlib.sha256(b"a b/\xc3\xa4.c").hexdigest()[:12]
    assert file_name("a b/ä.c") == f"a_b___c-{digest}"
    assert file_name("a" * 81).startswith("a" * 60 + "-") and len(file_name("a" * 81)) == 73


def test_folder_of_a_turnstile_that_has_no_locks_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(turnstile_module, "try_flock", refuse)
    before = len(os.listdir("/proc/self/fd"))
    opened = Turnstile.open("device", folder=tmp_path)
    with opened as found:
        assert found.why_not is not None and "No locks available" in found.why_not
        assert len(os.listdir("/proc/self/fd")) == before
