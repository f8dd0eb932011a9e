"""What a soak must not have done, checked against what lies on disk; see `bench_soak`."""

import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from faulty_runs import assert_unlocked
from helpers.command import ledger
from soak_faults import Sample, Soak

from tune_speed.core.words import StopReason

Claims = dict[str, bool]
END_S = 120.0
"""A driver waits a minute for MLflow at its end, and for trials that end by themselves."""
MOST_GROWTH_MIB, MOST_FILES, MOST_THREADS = 60.0, 15, 10
"""What a driver may have more of in the last third of its longest session than in the second."""
MOST_PROCESSES, MOST_MORE_FILES = 6, 200
"""Ray keeps a few idle workers. The files: its log monitors hold the logs of up to 200 processes,
dead ones too. Tries of 5 and 7 faults ended with 112 and 117 more than they began with, half an
hour of 83 faults with 111 more; what grows with each fault would pass this."""


def check_records(folder: Path, database: Path, study: str = "tiny") -> Claims:
    events = ledger(folder, study)
    proposed = {event["trial_id"] for event in events if event["event"] == "proposed"}
    records = [event["record"] for event in events if event["event"] == "finished"]
    finished = Counter(record["trial_id"] for record in records)
    runs = _mlflow_runs(database, study)
    statuses = {status for _, _, status in runs}
    bare = [
        r
        for r in records
        if r["status"] == "failed" and r["runs"][-1]["stop_reason"]["kind"] == "none"
    ]
    wrong = _wrong_curves(database, records, {name: run_id for run_id, name, _ in runs})
    for line in wrong[:10]:
        print(line)
    return {
        f"each of {len(proposed)} trials is finished": set(finished) == proposed,
        "each is in the ledger once": set(finished.values()) == {1},
        f"each is in MLflow once ({len(runs)} runs)": Counter(n for _, n, _ in runs) == finished,
        "each has ended there": statuses <= {"FINISHED", "FAILED"},
        "each that failed says why": not bare,
        "each curve in MLflow is the ledger's, each point once": not wrong,
        "nobody holds the study": _is_unlocked(folder),
    }


def check_leaks(soak: Soak) -> Claims:
    sessions: dict[int, list[Sample]] = defaultdict(list)
    for sample in soak.samples:
        sessions[sample.session].append(sample)
    longest = max(sessions.values(), key=len, default=[])
    claims = _driver_claims(longest) if len(longest) >= 6 else {}
    before, after = soak.before, soak.after
    print(f"\n{'held without a search':28} {'before':>9} {'after':>9}")
    for name, early, late in zip(before._fields[:3], before, after, strict=False):
        print(f"{name:28} {early:9.0f} {late:9.0f}")
    for name in sorted(before.files | after.files):
        print(f"  files of {name:17} {before.files[name]:9} {after.files[name]:9}")
    slowest_s = max((took_s for _, took_s in soak.asked), default=0.0)
    for text in soak.commands.broken[:5]:
        print(text)
    return {
        **claims,
        "cluster and server have the processes of before": (
            after.num_processes <= before.num_processes + MOST_PROCESSES
        ),
        "cluster and server have the open files of before": (
            after.num_files <= before.num_files + MOST_MORE_FILES
        ),
        f"no process of the search is left {soak.left or ''}": not soak.left,
        f"each driver ended within {END_S:g} s of being asked ({slowest_s:.0f} s)": (
            slowest_s <= END_S
        ),
        "no command hung, printed a traceback, left half a file, or ended in an unknown way": (
            not soak.commands.broken
        ),
    }


def _driver_claims(samples: list[Sample]) -> Claims:
    third = len(samples) // 3
    early, late = samples[third : 2 * third], samples[-third:]
    first, last = samples[0], samples[-1]
    print(
        f"\nthe driver in its longest session, of {last.age_s:.0f} s and"
        f" {last.num_finished - first.num_finished} trials:"
    )
    print(f"{'':28} {'2nd third':>9} {'3rd third':>9}")
    grown = {}
    for name in ("memory_mib", "num_files", "num_threads"):
        then, now = (median(getattr(s, name) for s in part) for part in (early, late))
        print(f"{name:28} {then:9.0f} {now:9.0f}")
        grown[name] = now - then
    return {
        "the driver's memory does not grow": grown["memory_mib"] <= MOST_GROWTH_MIB,
        "the driver's open files do not grow": grown["num_files"] <= MOST_FILES,
        "the driver's threads do not grow": grown["num_threads"] <= MOST_THREADS,
    }


def print_trials(folder: Path) -> None:
    events = ledger(folder)
    records = [event["record"] for event in events if event["event"] == "finished"]
    statuses = Counter(record["status"] for record in records)
    begun = Counter(event["event"] for event in events)["proposed"]
    why = Counter(_short(e["reason"]) for e in events if e["event"] == "interrupted")
    resumed = sum("resumed" in str(record["runs"][-1]["note"]) for record in records)
    told = ", ".join(f"{number} {status}" for status, number in statuses.items())
    print(f"\n{len(records)} trials finished: {told}; {begun} times begun")
    print(f"{resumed} of them went on from a checkpoint, last")
    for record in records:
        if record["status"] == "failed":
            print(f"  failed: {record['trial_id']} {_short(record['runs'][-1]['stop_reason'])}")
    for reason, number in why.most_common():
        print(f"  interrupted {number:4}: {reason}")


def _short(said: Any) -> str:
    reason = str(StopReason.model_validate(said))
    return reason if len(reason) < 110 else f"{reason[:50]} … {reason[-50:]}"


def _is_unlocked(folder: Path) -> bool:
    try:
        assert_unlocked(folder)
    except AssertionError as held:
        print(held)
        return False
    return True


def _mlflow_runs(database: Path, study: str) -> list[tuple[str, str, str]]:
    """Returns id, name and status of every trial's run, but for those of a certification."""
    query = (
        "select r.run_uuid, r.name, r.status from runs r join tags t on r.run_uuid = t.run_uuid"
        " join experiments e on e.experiment_id = r.experiment_id where e.name = ? and"
        " t.key = 'mlflow.parentRunId' and r.lifecycle_stage = 'active' and r.run_uuid not in"
        " (select run_uuid from tags where key = 'tune_speed.kind' and value = 'certified')"
    )
    with closing(sqlite3.connect(database)) as connection:
        return list(connection.execute(query, (study,)))


def _wrong_curves(
    database: Path, records: list[dict[str, Any]], run_ids: dict[str, str]
) -> list[str]:
    """Returns a line for each trial whose accuracies in MLflow are not those of its record."""
    query = "select step, value from metrics where run_uuid = ? and key = 'accuracy' order by step"
    wrong = []
    with closing(sqlite3.connect(database)) as connection:
        for record in records:
            points = [(e["step"], e["accuracy"]) for e in record["runs"][-1]["evaluations"]]
            run_id = run_ids.get(record["trial_id"], "")
            there = list(connection.execute(query, (run_id,)))
            if there != sorted(points):
                wrong.append(f"  {record['trial_id']}: {points} in the ledger, {there} in MLflow")
    return wrong
