"""A trial on several devices: one process a device trains, and one that keeps them looks on.

The keeper is the process in which the trial was begun; it trains nothing itself, so that whatever
happens to the others, the trial has an end. Rank 0 tells it each record so far and waits for the
answer; every rank tells it how it ended.

```
keeper   ←  Standing   rank 0, after each evaluation but the last
keeper   →  answer     a reason to stop, or None
keeper   ←  Ended      each rank, before it leaves the others
```

Out of memory on any rank ends the attempt for all; the next one has smaller micro-batches.
"""

import re
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tune_speed.core.errors import TuneSpeedError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.training.autotune.micro_batch import halved
from tune_speed.training.checkpoint.store import discard
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import Trial, run_trial
from tune_speed.training.ranks import Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import TrialSpec, failure, make_record, utc_now
from tune_speed.training.warm_up import LoneImage

POLL_S = 0.5
"""How often the keeper looks whether it is to interrupt [s]."""
GRACE_S = 5.0
"""How long the other ranks have to end, once one has [s]."""
LOST_S = 60.0
"""How long it may take until a rank is found dead, once another has lost its connection [s]."""
BAD = (Status.FAILED, Status.OOM)

_LOST = re.compile(r"Connection (reset|closed|refused)|Broken pipe|remote process exited", re.I)


class Standing(NamedTuple):
    """What rank 0 says after an evaluation."""

    record: str
    """JSON of the record so far."""


class Ended(NamedTuple):
    """What a rank says at its end: a record, or an error that is the user's to read."""

    rank: int
    record: str | None = None
    """JSON of the record; only rank 0's has evaluations."""
    error: TuneSpeedError | None = None


class RanksDied(Exception):
    """Processes of a trial on several devices are gone without a word."""


class RankChannel(Protocol):
    """What a rank has of its keeper."""

    def ask(self, standing: Standing) -> str | None:
        """Returns the keeper's answer: a reason to stop, or None."""

    def tell(self, ended: Ended) -> None:
        """Says how this rank ended; returns once the keeper can no longer miss it."""


class WorkerGroup(Protocol):
    """What a keeper has of its ranks, in one attempt."""

    def receive(self, *, timeout_s: float) -> Standing | Ended | None:
        """Returns what some rank says, in order; None if nobody says anything in time.

        Raises: RanksDied.
        """

    def answer(self, reason: str | None) -> None:
        """Answers rank 0."""

    def close(self) -> None:
        """Ends all ranks that still run and frees what they hold."""


Launch = Callable[[TrialSpec], WorkerGroup]
"""Starts one process a device, each of which calls `work`."""


def work(spec: TrialSpec, ranks: Ranks, line: RankChannel) -> None:
    """Does one rank's part of a trial."""
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

    Args:
        spec: of the trial; its recipe has several devices.
        launch: starts the processes.
        interrupt: asked about twice a second; a true answer raises `Interrupted`.
        refuse: kinds of errors that are raised; `RanksDied` may be among them.

    Raises: Interrupted, and errors of the kinds in `refuse`.
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
    # One that was gone on with began earlier.
    return record.model_copy(update={"started_at": min(started_at, record.started_at)})


def _run(
    spec: TrialSpec,
    launch: Launch,
    interrupt: Callable[[], bool],
    passed_on: tuple[type[Exception], ...],
) -> Trial:
    """Runs the trial, with smaller and smaller micro-batches where memory runs out."""
    first: Recipe | None = None
    too_large: TrialRecord | None = None
    while True:
        try:
            record = yield from _attempt(spec, launch, interrupt, passed_on)
        except LoneImage:
            if too_large is None:
                raise
            return too_large  # A micro-batch that is too small is no way out.
        ran = Recipe.model_validate(record.recipe)
        if record.status != Status.OOM:
            return _with_note(record, first, ran)
        smaller = halved(ran)
        if smaller is None:
            return record
        _discard_checkpoint(spec)  # The next attempt begins with its first step.
        first, too_large = first or ran, record
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
    """Runs the trial once, from the ranks' start to their end."""
    so_far: TrialRecord | None = None
    crew = launch(spec)
    try:
        while True:
            said = _wait(crew, interrupt)
            if isinstance(said, Ended):
                return _record_of(_end_of_all(crew, said, num_ranks=spec.recipe.devices))
            so_far = TrialRecord.model_validate_json(said.record)
            crew.answer((yield so_far))
    except Exception as error:
        if so_far is None or isinstance(error, (*passed_on, LoneImage)):
            raise
        return _failed_after(so_far, spec, error)
    finally:
        crew.close()


def _wait(crew: WorkerGroup, interrupt: Callable[[], bool]) -> Standing | Ended:
    """Returns what the ranks say next. A run ends by its workload's time limit."""
    while not interrupt():
        said = crew.receive(timeout_s=POLL_S)
        # How other ranks end is of interest only where it explains why rank 0 does not go on.
        if isinstance(said, Standing) or (said and (said.rank == 0 or _is_bad(said))):
            return said
    raise Interrupted


def _end_of_all(crew: WorkerGroup, ended: Ended, *, num_ranks: int) -> Ended:
    """Returns how the run ended: where one rank fails, others fail of it, so all are heard.

    Out of memory explains all the rest; otherwise who spoke first does.

    Raises: RanksDied, which explains more than how the others took it.
    """
    if not _is_bad(ended):
        return ended
    patience_s = LOST_S if _has_lost_another(ended) else GRACE_S
    said, deadline = [ended], time.monotonic() + patience_s
    while len(said) < num_ranks and time.monotonic() < deadline:
        other = crew.receive(timeout_s=POLL_S)
        if isinstance(other, Ended):
            said.append(other)
    return next((e for e in said if _status(e) == Status.OOM), ended)


def _is_bad(ended: Ended) -> bool:
    return ended.error is not None or _status(ended) in BAD


def _has_lost_another(ended: Ended) -> bool:
    """Whether the rank failed of another's silence, which may be that of the dead."""
    record = TrialRecord.model_validate_json(ended.record) if ended.record else None
    return record is not None and bool(_LOST.search(record.runs[-1].traceback or ""))


def _status(ended: Ended) -> Status | None:
    return TrialRecord.model_validate_json(ended.record).status if ended.record else None


def _record_of(ended: Ended) -> TrialRecord:
    if ended.error is not None:
        raise ended.error
    assert ended.record is not None
    return TrialRecord.model_validate_json(ended.record)


def _failed_after(so_far: TrialRecord, spec: TrialSpec, error: Exception) -> TrialRecord:
    """Returns the record of a trial that failed, with the evaluations that it had."""
    failed = failure(spec, error).model_dump(exclude_unset=True)
    run = so_far.runs[-1].model_copy(update=failed)
    changes = {"runs": (run,), "status": run.status, "finished_at": utc_now()}
    return so_far.model_copy(update=changes)


def _with_note(record: TrialRecord, first: Recipe | None, ran: Recipe) -> TrialRecord:
    if first is None:
        return record
    run = record.runs[-1]
    note = f"micro-batch {first.batch_size} ran out of memory, {ran.batch_size} did not"
    run = run.model_copy(update={"stop_reason": f"{run.stop_reason} ({note})"})
    return record.model_copy(update={"runs": (run,)})
