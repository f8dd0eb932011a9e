"""Who is certified: the fastest trials of a study, and the leader that runs next to them."""

import json
from collections.abc import Sequence

from tune_speed.core.comparability import board_key
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import PROTOCOL_VERSION, TrialRecord
from tune_speed.core.stats import RunStatistics
from tune_speed.custom.shipping import Loop
from tune_speed.tracking.reader.queries import TrackedTrial, find_trials


def find_estimates(uri: str, study: str, device: str | None) -> list[TrackedTrial]:
    """Returns the study's estimates that may be compared, all of one device and protocol.

    Raises: ConfigError if none met the target, or they are of several devices; ServiceError.
    """
    found = [
        each
        for each in find_trials(uri, study=study, kind="estimate")
        if (device or "") in each.record.device and each.record.protocol_version == PROTOCOL_VERSION
    ]
    keys = {board_key(each.record) for each in found if each.record.time_to_target_s is not None}
    if not keys:
        raise ConfigError(
            f"a study must have a trial that met its target to be certified, but {study} has none"
            f"{f' on a device like {device}' if device else ''} under protocol"
            f" {PROTOCOL_VERSION} ({len(found)} trials). Search on, with `tune-speed search …"
            " --resume` and more trials."
        )
    if len(keys) > 1:
        raise ConfigError(
            "a certification must be of one workload and device, but the study has met the target"
            f" on {', '.join(sorted(key.device for key in keys))}. Choose with --device."
        )
    return [each for each in found if board_key(each.record) in keys]


def choose_finalists(estimates: Sequence[TrackedTrial], top: int) -> list[TrackedTrial]:
    """Returns the `top` fastest, each recipe once."""
    chosen: dict[str, TrackedTrial] = {}
    timed = (each for each in estimates if each.record.time_to_target_s is not None)
    # The name decides a tie: other finalists than those begun could not be continued with.
    for each in sorted(timed, key=lambda e: (e.record.time_to_target_s or 0.0, e.name)):
        chosen.setdefault(json.dumps(each.record.recipe, sort_keys=True), each)
    return list(chosen.values())[:top]


def find_leader(uri: str, finalists: Sequence[TrackedTrial]) -> TrackedTrial | None:
    """Returns the best certified result of the same workload, device and protocol.

    None if there is none, or it is one of the finalists.
    """
    first = finalists[0].record
    wanted = board_key(first)._replace(kind="certified")
    names = {each.name for each in finalists}
    recipes = [each.record.recipe for each in finalists]
    others = [
        each
        for each in find_trials(uri, workload=first.workload_name, kind="certified")
        if board_key(each.record) == wanted
        and each.record.recipe not in recipes
        and each.name not in names
    ]
    return min(others, key=lambda e: RunStatistics.of(e.record).expected_s, default=None)


def refuse_other_loop(study: str, record: TrialRecord, loop: Loop | None) -> None:
    """Raises: ConfigError unless `loop` is the training function of the study's trials."""
    if not record.is_own_loop:
        if loop is None:
            return
        raise ConfigError(
            f"study {study} is of recipes: certify it without --train, or train= in Python."
        )
    name, theirs = record.workload["function"], record.workload["function_hash"]
    if loop is None:
        raise ConfigError(
            f"study {study} is of the training function {name}, which is needed to run it again:"
            f" tune-speed certify {study} --train FILE.py:{name}, or in Python"
            f" tune_speed.certify({study!r}, train={name})."
        )
    if loop.source_hash != theirs:
        raise ConfigError(
            f"study {study} must be certified with the training function of its trials, {name} with"
            f" source {theirs}, but got {loop.name} with source {loop.source_hash}. Put it back as"
            " it was, or search with this one under another name."
        )
