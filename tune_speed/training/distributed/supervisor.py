"""A trial on several devices: one process a device trains, and a supervisor watches them.

The supervisor is the process in which the trial was begun; it trains nothing itself, so that
whatever happens to the ranks, the trial has an end. Rank 0 reports `Standing` after each evaluation
but the last, and gets a reason to stop, or None; each rank reports `Ended` before it leaves. Out of
memory on any rank ends the attempt for all; the next one has smaller micro-batches.
"""

import re
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tune_speed.core.errors import TuneSpeedError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.words import StopReason
from tune_speed.training.autotune.micro_batch import halved
from tune_speed.training.checkpoint.store import discard
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import Trial, run_trial, with_micro_batch_note
from tune_speed.training.ranks import Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import micro_batch_of
from tune_speed.training.trial import TrialSpec, failure, make_record, utc_now, with_failure
from tune_speed.training.warm_up import LoneImage

POLL_S = 0.5
"""How often the supervisor looks whether it is to interrupt [s]."""
GRACE_S = 5.0
"""How long the other ranks have to end, once one has [s]."""
# How long it may take until a rank is found dead, once another has lost its connection [s].
LOST_S = 60.0

_LOST = re.compile(r"Connection (reset|closed|refused)|Broken pipe|remote process exited", re.I)


class Standing(NamedTuple):
    """What rank 0 reports after an evaluation."""

    record: str


class Ended(NamedTuple):
    """What a rank reports at its end: a record, or an error that is the user's to read."""

    rank: int
    record: str | None = None
    """JSON of the record; only rank 0's has evaluations."""
    error: TuneSpeedError | None = None

    def parsed(self) -> TrialRecord:
        """Returns the record. Raises: the error that came instead of it."""
        if self.error is not None:
            raise self.error
        assert self.record is not None
        return TrialRecord.model_validate_json(self.record)

    @property
    def status(self) -> Status | None:
        return self.parsed().status if self.error is None else None

    @property
    def is_bad(self) -> bool:
        """Whether the rank failed, which the others do not survive."""
        return self.error is not None or self.status in (Status.FAILED, Status.OOM)


class RanksDied(Exception):
    """Processes of a trial on several devices are gone without a word."""


class RankChannel(Protocol):
    """What a rank has of its supervisor."""

    def ask(self, standing: Standing) -> StopReason | None:
        """Returns the supervisor's answer: a reason to stop, or None."""

    def tell(self, ended: Ended) -> None:
        """Reports how this rank ended; returns once the supervisor can no longer miss it."""


class WorkerGroup(Protocol):
    """What a supervisor has of its ranks, in one attempt."""

    def receive(self, *, timeout_s: float) -> Standing | Ended | None:
        """Returns what a rank reports, in order; None if none does in time. Raises: RanksDied."""

    def answer(self, reason: StopReason | None) -> None:
        """Answers rank 0."""

    def close(self) -> None:
        """Ends all ranks that still run and frees what they hold."""


Launch = Callable[[TrialSpec], WorkerGroup]


def work(spec: TrialSpec, ranks: Ranks, line: RankChannel) -> None:
    trial = run_trial(spec, refuse=(TuneSpeedError,), ranks=ranks)
    try:
        record = next(trial)
        while True:
            record = trial.send(line.ask(Standing(record.model_dump_json())))
    except StopIteration as end:
        line.tell(Ended(ranks.rank, end.value.model_dump_json()))
    except TuneSpeedError as error:
        line.tell(Ended(ranks.rank, error=error))


def run_together(
    spec: TrialSpec,
    *,
    launch: Launch,
    interrupt: Callable[[], bool] = lambda: False,
    refuse: tuple[type[Exception], ...] = (),
) -> Trial:
    """Runs one trial on the recipe's devices; whatever goes wrong becomes its status, as alone.

    Raises: Interrupted once `interrupt`, which is called about twice a second, says so; errors of
        the kinds in `refuse`; `RanksDied` may be among them.
    """
    started_at = utc_now()
    passed_on: tuple[type[Exception], ...] = (Interrupted, *refuse)
    try:
        record = yield from _run(spec, launch, interrupt, passed_on)
    except passed_on:
        raise
    except Exception as error:
        record = make_record(spec, spec.recipe, failure(spec, error), started_at=started_at)
    _discard_checkpoint(spec)
    # A resumed one began earlier.
    return record.model_copy(update={"started_at": min(started_at, record.started_at)})


def _run(
    spec: TrialSpec,
    launch: Launch,
    interrupt: Callable[[], bool],
    passed_on: tuple[type[Exception], ...],
) -> Trial:
    first_batch_size: int | None = None
    too_large: TrialRecord | None = None
    while True:
        try:
            record = yield from _attempt(spec, launch, interrupt, passed_on)
        except LoneImage:
            if too_large is None:
                raise
            # A micro-batch that is too small is no way out.
            return too_large
        ran = Recipe.model_validate(record.recipe)
        if record.status != Status.OOM:
            if first_batch_size is None:
                return record
            run = with_micro_batch_note(record.runs[-1], first_batch_size, ran)
            return record.model_copy(update={"runs": (run,)})
        smaller = halved(ran)
        if smaller is None:
            return record
        # The next attempt begins with its first step.
        _discard_checkpoint(spec)
        first_batch_size, too_large = first_batch_size or micro_batch_of(ran), record
        spec = spec.model_copy(update={"recipe": smaller})


def _discard_checkpoint(spec: TrialSpec) -> None:
    if spec.checkpoint is not None:
        discard(spec.checkpoint.place)


def _attempt(
    spec: TrialSpec,
    launch: Launch,
    interrupt: Callable[[], bool],
    passed_on: tuple[type[Exception], ...],
) -> Trial:
    so_far: TrialRecord | None = None
    group = launch(spec)
    try:
        while True:
            said = _wait(group, interrupt)
            if isinstance(said, Ended):
                return _end_of_all(group, said, num_ranks=spec.recipe.devices).parsed()
            so_far = TrialRecord.model_validate_json(said.record)
            group.answer((yield so_far))
    except Exception as error:
        if so_far is None or isinstance(error, (*passed_on, LoneImage)):
            raise
        return with_failure(so_far, failure(spec, error))
    finally:
        group.close()


def _wait(group: WorkerGroup, interrupt: Callable[[], bool]) -> Standing | Ended:
    while not interrupt():
        said = group.receive(timeout_s=POLL_S)
        # How other ranks end matters only where it explains why rank 0 does not continue.
        if isinstance(said, Standing) or (said and (said.rank == 0 or said.is_bad)):
            return said
    raise Interrupted


def _end_of_all(group: WorkerGroup, ended: Ended, *, num_ranks: int) -> Ended:
    """Returns how the run ended: out of memory explains all the rest, otherwise who spoke first.

    Raises: RanksDied, which explains more than how the others took it.
    """
    if not ended.is_bad:
        return ended
    # A lost connection may be due to a rank that died, which takes longer to be found.
    is_lost = ended.error is None and _LOST.search(ended.parsed().runs[-1].traceback or "")
    deadline = time.monotonic() + (LOST_S if is_lost else GRACE_S)
    said = [ended]
    while len(said) < num_ranks and time.monotonic() < deadline:
        other = group.receive(timeout_s=POLL_S)
        if isinstance(other, Ended):
            said.append(other)
    return next((each for each in said if each.status == Status.OOM), ended)
