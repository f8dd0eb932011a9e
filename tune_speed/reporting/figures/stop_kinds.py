"""Why a trial ended, as one of a few kinds: the reasons in records hold figures of their own."""

import re

from tune_speed.core.records import Status, TrialRecord

REACHED = "met the target"
ENDED_BELOW = "ended below the target"
STOP_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("stopped: unlikely to meet the target", re.compile(r"likely to ")),
    ("stopped: slower than the leader", re.compile(r"leader .* met the target in")),
    ("stopped: other trials promised more", re.compile(r"trials promised more")),
    ("stopped: below ASHA's cutoff", re.compile(r"ASHA's cutoff")),
    ("stopped: the workload's time limit", re.compile(r"max_train_s")),
)
"""Words for the reasons that searches and runs give, and what tells each."""
OTHER_STOP = "stopped: another reason"
FIXED_KINDS = {
    Status.REACHED: REACHED,
    Status.MISSED: ENDED_BELOW,
    Status.OOM: "out of memory",
    Status.DIVERGED: "diverged: the loss was not finite",
}
PROCESS_DIED = "failed: its process died"
OTHER_FAILURE = "failed"

_ERROR = re.compile(r"(?:\w+\.)*([A-Za-z_]\w{0,40}):")


def stop_kind(record: TrialRecord) -> str:
    """Returns why the record's last run ended, without the figures of that run."""
    if record.status in FIXED_KINDS:
        return FIXED_KINDS[record.status]
    if record.status is Status.FAILED:
        return _failure(record.stop_reason)
    matching = (kind for kind, pattern in STOP_KINDS if pattern.search(record.stop_reason))
    return next(matching, OTHER_STOP)


def _failure(reason: str) -> str:
    if reason.startswith("its process died"):
        return PROCESS_DIED
    error = _ERROR.match(reason)
    return f"failed: {error[1]}" if error else OTHER_FAILURE
