from collections.abc import Callable
from typing import Any

import pytest
from helpers.making import make_record, make_run
from helpers.reporting.pages import certified, ordinary, trained, viewed

from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.reporting.page.answer import answer_of


def verified(rival: str, speedup: float, p_value: float) -> dict[str, Any]:
    found = {"status": "re-timed", "incumbent": rival, "speedup": speedup, "p_value": p_value}
    return {"certificate": {"verification": found}}


MACRO = {**make_record().workload, "target": {"metric": "macro_f1", "value": 0.9}}
BOOM = RunResult(status=Status.FAILED, seed=0, stop_reason="boom", traceback="Traceback: one")
ANSWERS: dict[str, list[TrialRecord]] = {
    "estimate": ordinary(),
    "certified, an estimate is faster": [*ordinary(), certified("t0002", 0.7, 0.8, 0.9, misses=1)],
    "the fastest did not hold": [
        *(*ordinary(), certified("t0002", 0.7, 0.8)),
        certified("t0000", 0.5, misses=4),
    ],
    "none held": [*ordinary(), certified("t0000", misses=3)],
    "beaten": [certified("t0002", 0.7, 0.8, **verified("other/t0012", 0.35, 1.0))],
    "a lead by chance": [certified("t0002", 0.7, 0.8, **verified("study/t0001", 1.25, 0.2))],
    "a clear lead": [certified("t0002", 0.7, 0.8, **verified("study/t0001", 1.25, 0.01))],
    "missed": [trained(f"t{i:04d}", Status.MISSED, time_s=1.0 + i) for i in range(3)],
    "failed": [make_record(f"t{i:04d}", Status.FAILED, runs=(BOOM,)) for i in range(3)],
    "certifications that missed": [certified("t0000", misses=2)],
    "macro F1": [trained("t0000", Status.MISSED, time_s=1.0, workload=MACRO)],
    "a shared clock": [trained("t0000", runs=(make_run(time_s=0.5),))],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answer_of_a_study(name: str, kept_text: Callable[[str], None]) -> None:
    view = viewed(ANSWERS[name])
    (part,) = view.parts
    found = answer_of(part, view.boards)
    winner = None if found.winner is None else found.winner.record
    of = f"{winner.trial_id}, {winner.kind}" if winner else "none"
    lines = [found.verdict, f"{found.lead}: {found.figure} {found.claim}", *found.sure]
    kept_text("\n".join([*lines, f"winner: {of}", found.traceback or ""]))
