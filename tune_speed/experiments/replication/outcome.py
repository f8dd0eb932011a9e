"""What a replication found: the record that is written, and that its tables are made of."""

from collections.abc import Collection, Mapping, Sequence

from tune_speed.core.records import Record
from tune_speed.core.redact import redact
from tune_speed.experiments.ablation.result import AblationResult
from tune_speed.experiments.replication.agreement import Agreement, agreements
from tune_speed.experiments.replication.plan import FULL
from tune_speed.study.replication import ReplicationConfig, ScaleConfig


class CheckRow(Record):
    """A question that needs no training, and its answers."""

    check: str
    """Name of the check."""
    question: str
    expected: str
    """The paper's answer, or what must come out."""
    ours: str
    agrees: str
    """`yes`, `no`, `not decided` or `not applicable here`."""
    source: str = ""
    """Where the question or the expected answer is from."""


class Outcome(Record):
    """The published figures of an experiment next to ours."""

    name: str
    items: tuple[int, ...]
    """Numbers of the experiment on the sheet of the source documents."""
    title: str
    question: str
    profile: str
    about: str
    """What is smaller than in the source, in one sentence; empty for `full`."""
    overrides: tuple[str, ...] = ()
    """What the user changed about the profile, as `path=value`."""
    devices: tuple[str, ...]
    """Devices of the runs."""
    seeds: tuple[int, ...]
    """Runs of each arm as planned, the different numbers of the parts."""
    done_runs: int
    planned_runs: int
    rows: tuple[Agreement, ...]
    checks: tuple[CheckRow, ...]
    caveats: tuple[str, ...]
    """What is known to be wrong with the source, or unlike it here."""


def outcome(
    replication: ReplicationConfig,
    results: Mapping[str, AblationResult],
    *,
    name: str,
    profile: str = FULL,
    scale: ScaleConfig | None = None,
    checks: Sequence[CheckRow] = (),
    overrides: Sequence[str] = (),
    to_come: Collection[str] = (),
) -> Outcome:
    """Returns what the results of each part say about the claims.

    Args:
        replication: The section of the file.
        results: By the name of the part; `""` for a file without parts.
        name: Of the replication.
        profile: That was run.
        scale: Its fields; None for `full`.
        checks: Answers that needed no training.
        overrides: What the user changed about the profile, as `path=value`.
        to_come: Parts of the profile that were not begun.

    Raises: ConfigError for a claim whose published figure cannot be found.
    """
    found = list(results.values())
    return Outcome(
        name=name,
        items=tuple(replication.items),
        title=replication.title,
        question=replication.question,
        profile=profile,
        about=scale.about if scale else "",
        # The outcome is written to disk, and what the user gave may hold a secret.
        overrides=tuple(map(redact, overrides)),
        devices=tuple(dict.fromkeys(result.device for result in found if result.device)),
        seeds=tuple(sorted({result.seeds for result in found})),
        done_runs=sum(result.done_runs for result in found),
        planned_runs=sum(result.planned_runs for result in found),
        rows=agreements(replication.claims, results, profile=profile, to_come=to_come),
        checks=tuple(checks),
        caveats=tuple(replication.caveats),
    )
