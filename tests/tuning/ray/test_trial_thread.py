import threading
import time
from collections.abc import Iterator

import pytest
from helpers.making import make_record

from tune_speed.core.records import TrialRecord
from tune_speed.tuning.ray.trial_process import End, Tell, TrialThread

SOON_S = 20.0
"""Far more than anything here takes."""


class Steps:
    def __init__(self, *, number: int, error: BaseException | None = None) -> None:
        self.gates = [threading.Event() for _ in range(number + 1)]
        self.names: list[str] = []
        self._error = error

    def run(self, tell: Tell) -> TrialRecord:
        for number, gate in enumerate(self.gates):
            assert gate.wait(SOON_S)
            self.names.append(threading.current_thread().name)
            if number < len(self.gates) - 1:
                tell(make_record(f"t{number:04d}"))
        if self._error is not None:
            raise self._error
        return make_record("t9999")

    def open_up_to(self, number: int) -> None:
        for gate in self.gates[:number]:
            gate.set()


def wait_for(steps: Steps, number: int) -> None:
    deadline = time.monotonic() + SOON_S
    while len(steps.names) < number:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def thread() -> Iterator[TrialThread]:
    yield TrialThread()


def test_training_goes_on_while_nobody_asks(thread: TrialThread) -> None:
    steps = Steps(number=3)
    thread.begin(steps.run)
    steps.open_up_to(4)
    wait_for(steps, 4)
    end = thread.poll(timeout_s=SOON_S)
    assert isinstance(end, End) and end.record is not None
    assert end.record.trial_id == "t9999"


def test_news_is_the_newest_record_once(thread: TrialThread) -> None:
    steps = Steps(number=3)
    thread.begin(steps.run)
    assert thread.poll(timeout_s=0.01) is None
    steps.open_up_to(2)
    wait_for(steps, 2)
    # The second record follows its step at once, but not within it.
    seen = [thread.poll(timeout_s=SOON_S)]
    while isinstance(seen[-1], TrialRecord) and seen[-1].trial_id != "t0001":
        seen.append(thread.poll(timeout_s=SOON_S))
    assert isinstance(seen[-1], TrialRecord) and seen[-1].trial_id == "t0001"
    assert thread.poll(timeout_s=0.01) is None
    steps.open_up_to(4)


def test_all_trials_train_in_one_thread_that_is_not_the_main_one(thread: TrialThread) -> None:
    idents = set()

    def trial(tell: Tell) -> TrialRecord:
        idents.add(threading.get_ident())
        return make_record()

    for _ in range(3):
        thread.begin(trial)
        assert thread.has_ended(timeout_s=SOON_S)
    assert len(idents) == 1
    assert threading.main_thread().ident not in idents


def test_error_of_a_trial_arrives_with_its_traceback(thread: TrialThread) -> None:
    steps = Steps(number=0, error=ZeroDivisionError("boom"))
    steps.open_up_to(1)
    thread.begin(steps.run)
    end = thread.poll(timeout_s=SOON_S)
    assert isinstance(end, End) and isinstance(end.error, ZeroDivisionError)
    traceback = end.error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    assert traceback is not None and traceback.tb_frame.f_code.co_name == "run"


def test_what_ends_a_process_elsewhere_ends_a_trial_here(thread: TrialThread) -> None:
    for error in (KeyboardInterrupt(), SystemExit(0), GeneratorExit()):
        steps = Steps(number=0, error=error)
        steps.open_up_to(1)
        thread.begin(steps.run)
        end = thread.poll(timeout_s=SOON_S)
        assert isinstance(end, End) and isinstance(end.error, RuntimeError)
        assert type(error).__name__ in str(end.error)
    assert thread.thread.is_alive()


def test_trial_that_is_given_up_says_nothing_more(thread: TrialThread) -> None:
    steps = Steps(number=1)
    thread.begin(steps.run)
    given_up = End(record=make_record("t0007"), is_hung=True)
    assert thread.give_up(given_up)
    assert thread.poll(timeout_s=SOON_S) is given_up
    assert not thread.has_ended(timeout_s=0.01)
    steps.open_up_to(2)
    wait_for(steps, 2)
    assert thread.poll(timeout_s=0.2) is given_up


def test_trial_that_has_ended_is_not_given_up(thread: TrialThread) -> None:
    steps = Steps(number=0)
    steps.open_up_to(1)
    thread.begin(steps.run)
    assert thread.has_ended(timeout_s=SOON_S)
    assert not thread.give_up(End(is_hung=True))
    assert thread.has_ended(timeout_s=0.01)
