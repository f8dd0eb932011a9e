"""What a trial looks like in MLflow: pure functions from records to parameters, metrics and tags.

| in MLflow  | what                                                                              |
|------------|-----------------------------------------------------------------------------------|
| experiment | a study                                                                           |
| parent run | its search; metrics `trials`, `trials_<status>`, `best_time_to_target_s` over time |
| child run  | a trial, named by its id, `mlflow.parentRunId` set                                 |
| parameters | the recipe as it was proposed, flattened, and what the search chose; what ran      |
|            | otherwise (a halved micro-batch) is next to it as `ran.<field>`                    |
| metrics    | of each evaluation at its step, and of the whole run once, at the end: `glossary`  |
| tags       | `tune_speed.<name>`, see `glossary`                                                |
| artifacts  | recipe.yaml, environment.json, record.json (the whole record)                      |

A metric's timestamp is the run's start plus the training clock, not the time of day: MLflow's
relative time axis then shows training seconds since the first evaluation, and sending a point twice
changes nothing. (`train_s` as the x-axis shows the clock itself.) Of several runs of one record
(seeds), each has its metrics under `<name>/seed_<seed>`, and next to them are the whole record's
`time_to_target_s` (the median; absent if it is infinite), `hits` and `n`.
"""

import getpass
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import yaml
from pydantic import TypeAdapter, ValidationError

from tune_speed.core import comparability, records
from tune_speed.core.comparability import ComparisonKey, target_of
from tune_speed.core.config import flatten
from tune_speed.core.records import (
    Evaluation,
    Recommended,
    RunResult,
    Status,
    StepTime,
    TrialRecord,
)
from tune_speed.core.stats import median_time_s, ranked_s
from tune_speed.tracking.columns import METRICS, run_metrics
from tune_speed.tracking.store.uri import strip_secrets

MAX_KEY = 250
MAX_PARAM = 6000
# Characters; MLflow 3 takes 8000, older servers 5000.
MAX_TAG = 5000
# Characters of a traceback's end in the record's tag; the artifact holds all of it.
MAX_TRACEBACK = 1500

PREFIX = "tune_speed."
KIND, STUDY, TRIAL_ID = f"{PREFIX}kind", f"{PREFIX}study", f"{PREFIX}trial_id"
SEARCH_ID = f"{PREFIX}search_id"
PARENT = "mlflow.parentRunId"
"""Tag of a trial's run: the run of its search."""
STATUS, STOP_REASON = f"{PREFIX}status", f"{PREFIX}stop_reason"
PROPOSAL_REASON, SEARCHED = f"{PREFIX}proposal_reason", f"{PREFIX}searched"
WORKLOAD, DEVICE = f"{PREFIX}workload", f"{PREFIX}device"
RECORD, UPDATED_AT, BEST_TRIAL = f"{PREFIX}record", f"{PREFIX}updated_at", f"{PREFIX}best_trial"
RECOMMENDED = f"{PREFIX}recommended"
STEERED = f"{PREFIX}steered"
RANGE_ENDS = f"{PREFIX}range_ends"
SEARCH, STUDY_KIND = "search", "study"
RECORD_FILE, CERTIFICATE_FILE = "record.json", "certificate.json"
FACTS = f"{PREFIX}facts"
"""Tag of a trial: its `Facts`, as JSON."""
EXPECTED, FINAL_METRIC = "expected_s", "final_metric"
"""Metrics by which leaderboards rank, the lower and then the better first."""
CLOCK = f"{PREFIX}clock"

_SECRET_NAME = re.compile(r"passw|pwd|secret|token|credential|api_?key", re.I)


class Point(NamedTuple):
    """One value of a metric."""

    key: str
    value: float
    timestamp_ms: int
    step: int


def safe_key(name: str) -> str:
    """Returns `name` as MLflow accepts keys: of letters, digits and `_-.: `, up to 250 of them."""
    key = re.sub(r"[^\w.\-: ]", "_", name) or "_"
    key = f"_{key}" if key.startswith(".") else key
    if len(key) <= MAX_KEY:
        return key
    return f"{key[: MAX_KEY - 13]}-{sha256(name.encode('utf-8', 'replace')).hexdigest()[:12]}"


def clean(text: str, *, limit: int) -> str:
    """Returns `text` without secrets and without what databases refuse, cut to `limit`."""
    text = strip_secrets(text).encode("utf-8", "replace").decode()
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "\N{REPLACEMENT CHARACTER}", text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def param_entries(recipe: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, str]:
    return {
        safe_key(path): clean(
            value if isinstance(value, str) else json.dumps(value, default=str), limit=MAX_PARAM
        )
        for path, value in {**flatten(records.named_settings(recipe)), **params}.items()
    }


def ran_entries(recipe: Mapping[str, Any], proposed: Mapping[str, str]) -> dict[str, str]:
    """Returns `ran.<field>` for each field of the recipe that ran which was not proposed so."""
    return {
        safe_key(f"ran.{key}"): value
        for key, value in param_entries(recipe, {}).items()
        if not _is_same(value, proposed.get(key))
    }


def metric_key(metric: str) -> str:
    """Returns the name of an evaluation's metric; a taken name of a user's own is under `own.`."""
    if metric == "loss":
        return "val_loss"
    key = safe_key(metric)
    is_taken = key in METRICS and key not in records.MEASURED
    return f"own.{key}" if is_taken or key == "val_loss" else key


def curve_points(evaluation: Evaluation, *, start_ms: int, suffix: str = "") -> list[Point]:
    values = {
        "accuracy": evaluation.accuracy,
        "macro_f1": evaluation.macro_f1,
        "micro_f1": evaluation.micro_f1,
        **{metric_key(name): value for name, value in evaluation.values.items()},
        "val_loss": evaluation.loss,
        "train_loss": evaluation.train_loss,
        "train_s": evaluation.train_s,
    }
    at_ms = start_ms + round(evaluation.train_s * 1000)
    return _points(values, at_ms=at_ms, step=evaluation.step, suffix=suffix)


def run_points(record: TrialRecord, run: RunResult, *, start_ms: int) -> list[Point]:
    final, target = run.final, target_of(record.workload)
    values = {
        "reached": float(run.status is Status.REACHED),
        "time_to_target_s": run.time_to_target_s,
        "gap": gap(record, run),
        "final_accuracy": final.accuracy if final else None,
        "final_macro_f1": final.macro_f1 if final else None,
        f"final_{safe_key(target.metric)}"[:MAX_KEY]: final.value(target.metric) if final else None,
        **run_metrics(run),
        "shared_train_s": run.shared_train_s,
        "init_s": run.init_s,
        "amortised_time_to_target_s": run.amortised_time_to_target_s if run.init_s else None,
        "fed_ratio": run.fed_ratio,
        "gpu_utilisation": run.gpu_utilisation,
        "device_memory_gib": run.device_memory_gib,
        **run.clocks.model_dump(),
    }
    at_ms = start_ms + round(run.clocks.train_s * 1000)
    return _points(values, at_ms=at_ms, step=run.steps, suffix=seed_suffix(record, run))


def mark(evaluation: Evaluation) -> str:
    """Returns what identifies an evaluation of a run, whatever its clock is corrected to."""
    return evaluation.model_dump_json(exclude={"train_s"})


def record_points(
    record: TrialRecord, *, start_ms: int, without: Collection[str] = ()
) -> list[Point]:
    # Scores come first: MLflow's compare view shows the first metric.
    points: list[Point] = []
    for run in record.runs:
        suffix = seed_suffix(record, run)
        for evaluation in run.evaluations:
            if suffix or mark(evaluation) not in without:
                points += curve_points(evaluation, start_ms=start_ms, suffix=suffix)
    return [*points, *final_points(record, start_ms=start_ms)]


def final_points(record: TrialRecord, *, start_ms: int) -> list[Point]:
    """Returns the metrics of a finished trial that follow from its clock, without its curve."""
    runs = [p for run in record.runs for p in run_points(record, run, start_ms=start_ms)]
    return [*runs, *rank_points(record, start_ms=start_ms)]


def rank_points(record: TrialRecord, *, start_ms: int) -> list[Point]:
    """Returns what ranks a trial; no `expected_s` where half of the runs or more missed."""
    if not record.runs:
        return []
    last, n = record.runs[-1], len(record.runs)
    values = {EXPECTED: ranked_s(record), FINAL_METRIC: comparability.final_metric(record)}
    if n > 1:
        hits = sum(run.status is Status.REACHED for run in record.runs)
        median_s = median_time_s([run.time_to_target_s for run in record.runs])
        values |= {"time_to_target_s": median_s, "hits": float(hits), "n": float(n)}
    at_ms = start_ms + round(last.clocks.train_s * 1000)
    return _points(values, at_ms=at_ms, step=last.steps, suffix="")


def gap(record: TrialRecord, run: RunResult) -> float | None:
    """Returns how far the run stayed off the target, in the metric's units: `anytime` at its best.

    None where the metric was not measured.
    """
    target = target_of(record.workload)
    seen = [comparability.goodness(e.value(target.metric), target) for e in run.evaluations]
    if not seen or math.isnan(target.value):
        return None
    reached = max(seen) if record.workload.get("mode") == "anytime" else seen[-1]
    missing = comparability.goodness(target.value, target) - reached
    return max(0.0, missing) if math.isfinite(reached) else None


def seed_suffix(record: TrialRecord, run: RunResult) -> str:
    return f"/seed_{run.seed}" if len(record.runs) > 1 else ""


def study_tag_entries(study: str, tags: Mapping[str, str]) -> dict[str, str]:
    """Returns the tags that all runs of a study share; names get the prefix `tune_speed.`."""
    return _tags({**study_tags(tags), STUDY: study})


def study_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return _tags({f"{PREFIX}{safe_key(name)}": value for name, value in tags.items()})


def pack_steered(done: Sequence[Sequence[str]]) -> dict[str, str]:
    """Returns what people changed about a search, moments and lines, as tags."""
    return _split(STEERED, _printable(done))


def unpack_steered(tags: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns what `pack_steered` said; nothing where it is not there or is damaged."""
    try:
        done = json.loads(_joined(STEERED, tags))
        return [(str(at), str(line)) for at, line in done]
    except (ValueError, TypeError, RecursionError):
        return []


def user_tags() -> dict[str, str]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A container may know no user names.
        user = "unknown"
    return {"mlflow.user": user, "mlflow.source.name": "tune-speed"}


def start_tags(trial_id: str, *, kind: str) -> dict[str, str]:
    return _tags({KIND: kind, TRIAL_ID: trial_id, STATUS: "running"})


def searched_tag(names: Iterable[str]) -> dict[str, str]:
    text = ", ".join(map(safe_key, names))
    return _tags({SEARCHED: text}) if text else {}


def interrupted_tags(reason: str) -> dict[str, str]:
    return _tags({STATUS: "interrupted", STOP_REASON: reason})


def record_tags(record: TrialRecord) -> dict[str, str]:
    facts = {
        KIND: record.kind,
        f"{PREFIX}verdict": record.verdict,
        STUDY: record.study,
        TRIAL_ID: record.trial_id,
        WORKLOAD: record.workload_name,
        f"{PREFIX}workload_hash": record.workload_hash,
        f"{PREFIX}space_hash": record.space_hash,
        f"{PREFIX}protocol_version": str(record.protocol_version),
        DEVICE: str(record.device),
        f"{PREFIX}cpu_threads": str(record.cpu_threads),
        f"{PREFIX}timing": ", ".join(sorted({run.timing.value for run in record.runs})),
        f"{PREFIX}max_cotenants": str(record.max_cotenants),
        STATUS: record.status.value,
        STOP_REASON: str(record.stop_reason),
        PROPOSAL_REASON: str(record.proposal_reason),
        f"{PREFIX}started_at": record.started_at,
        f"{PREFIX}finished_at": record.finished_at,
    }
    if clock := clock_of(record):
        facts[CLOCK] = clock
    versions = {f"{PREFIX}env.{safe_key(k)}": v for k, v in _public(record.environment).items()}
    sources = {f"{PREFIX}plugin.{safe_key(k)}": v for k, v in record.plugins.items()}
    short = _printable(facts_of(record))
    found = {FACTS: short} if len(short) <= MAX_TAG else {}
    return {**_tags({**versions, **sources, **facts}), **found, **pack_record(record)}


def clock_of(record: TrialRecord) -> str:
    """Returns the step times [s] that the record's clock is made of; empty: of none."""
    return " ".join(f"{each.step_s:.6g}" for run in record.runs for each in run.step_times)


def pack_record(record: TrialRecord) -> dict[str, str]:
    """Returns the record without its curve as tags: `tune_speed.record`, and `.1`, `.2` if long."""
    bare = {"runs": tuple(map(_without_curve, record.runs)), "certificate": _essence(record)}
    return _split(RECORD, _as_json(record.model_copy(update=bare)))


def unpack_record(tags: Mapping[str, str]) -> TrialRecord | None:
    """Returns the record that `tags` hold, or None if they hold none that can be read."""
    try:
        return TrialRecord.model_validate_json(record_text(tags))
    except ValidationError:
        return None


def record_text(tags: Mapping[str, str]) -> str:
    """Returns the record that `tags` hold as JSON; empty: none."""
    return _joined(RECORD, tags)


def board_id(key: ComparisonKey) -> str:
    # A hash, as MLflow's filters cannot quote each device's name.
    return sha256(_printable(key).encode()).hexdigest()[:16]


Favourites = tuple[str, tuple[Recommended, ...]]
"""The id of a board with what a search recommends there, best first."""


def pack_favourites(favourites: Sequence[Recommended], key: ComparisonKey) -> dict[str, str]:
    """Returns what a search recommends, and on which board, as tags (see `pack_boards`)."""
    entries = [each.model_dump(mode="json", exclude_defaults=True) for each in favourites]
    return _split(RECOMMENDED, _printable([board_id(key), *entries]))


def unpack_favourites(tags: Mapping[str, str]) -> Favourites:
    """Returns what `pack_favourites` said; of no board and none where it is not or is damaged."""
    try:
        (board, *favourites), _ = json.JSONDecoder().raw_decode(_joined(RECOMMENDED, tags))
        return str(board), tuple(map(Recommended.model_validate, favourites))
    except (ValueError, TypeError, RecursionError):
        return "", ()


def unpack_range_ends(tags: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the ranges at whose ends the best of a search lie, in words; empty: not said."""
    return tuple(filter(None, tags.get(RANGE_ENDS, "").split("; ")))


class Facts(NamedTuple):
    """What boards and sums know of a trial; the index of a store has a column for each."""

    study: str
    trial_id: str
    kind: str
    status: str
    board: str
    """Its `ComparisonKey`, as JSON."""
    ranked_s: float | None
    """See `stats.ranked_s`; None: no rank."""
    goodness: float | None
    """See `comparability.final_goodness`; None: -∞."""
    time_s: float | None
    """Median time to target [s]; None: a miss."""
    tuning_cost_s: float
    """See `Totals`."""
    device_s: float
    num_windows: int
    """Isolated step times that this very trial measured."""


_FACTS, _KEY = TypeAdapter(Facts), TypeAdapter(ComparisonKey)


def facts_of(record: TrialRecord) -> Facts:
    totals, goodness = comparability.totals_of([record]), comparability.final_goodness(record)
    return Facts(
        study=record.study,
        trial_id=record.trial_id,
        kind=record.kind,
        status=record.status.value,
        board=json.dumps(comparability.board_key(record)),
        ranked_s=ranked_s(record),
        goodness=goodness if math.isfinite(goodness) else None,
        time_s=median_time_s([run.time_to_target_s for run in record.runs]),
        tuning_cost_s=totals.tuning_cost_s,
        device_s=totals.device_s,
        num_windows=len(own_windows(record)),
    )


def own_windows(record: TrialRecord) -> list[StepTime]:
    """Returns the isolated step times that this very trial measured."""
    # Steps of a training function are known to be alike only within one run.
    runs = () if record.is_own_loop else record.runs
    label = f"{record.study}/{record.trial_id}"
    return [each for run in runs for each in run.windows if each.measured_in == label]


def unpack_facts(tags: Mapping[str, str]) -> Facts | None:
    """Returns what `record_tags` says of a trial in short; None where an older version did not."""
    try:
        facts = _FACTS.validate_json(tags.get(FACTS, ""))
        _KEY.validate_json(facts.board)
    except ValidationError:
        return None
    return facts


def artifact_files(record: TrialRecord) -> dict[str, str]:
    recipe = yaml.safe_dump(record.recipe, sort_keys=False, allow_unicode=True)
    environment = json.dumps(_public(record.environment), indent=2, sort_keys=True)
    certificate = json.dumps(record.certificate, indent=2, allow_nan=False)
    return {
        **({CERTIFICATE_FILE: strip_secrets(certificate)} if record.certificate else {}),
        "recipe.yaml": strip_secrets(recipe),
        "environment.json": f"{strip_secrets(environment)}\n",
        RECORD_FILE: _as_json(record),
    }


def time_ms(text: str) -> int | None:
    """Returns a record's ISO 8601 time in ms since 1970, or None if it is none."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _points(
    values: Mapping[str, float | None], *, at_ms: int, step: int, suffix: str
) -> list[Point]:
    return [
        Point(f"{key}{suffix}", float(value), at_ms, step)
        for key, value in values.items()
        if value is not None
    ]


def _is_same(value: str, other: str | None) -> bool:
    try:
        return value == other or float(value) == float(other or "")
    except ValueError:
        return False


def _split(name: str, text: str) -> dict[str, str]:
    parts = [text[i : i + MAX_TAG] for i in range(0, len(text), MAX_TAG)]
    return {f"{name}.{i}" if i else name: part for i, part in enumerate(parts)}


def _joined(name: str, tags: Mapping[str, str]) -> str:
    parts = [tags.get(name, "")]
    while (key := f"{name}.{len(parts)}") in tags:
        parts.append(tags[key])
    return "".join(parts)


def _printable(value: Any) -> str:
    return strip_secrets(json.dumps(value, ensure_ascii=False)).encode("utf-8", "replace").decode()


def _tags(values: Mapping[str, str]) -> dict[str, str]:
    return {key[:MAX_KEY]: clean(value, limit=MAX_TAG) for key, value in values.items()}


def _public(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: "***" if _SECRET_NAME.search(k) else v for k, v in environment.items()}


def _without_curve(run: RunResult) -> RunResult:
    traceback = run.traceback
    if traceback and len(traceback) > MAX_TRACEBACK:
        traceback = f"…{traceback[-MAX_TRACEBACK:]}"
    return run.model_copy(update={"evaluations": run.evaluations[-1:], "traceback": traceback})


def _essence(record: TrialRecord) -> dict[str, Any] | None:
    if record.certificate is None:
        return None
    verification = record.certificate["verification"]
    left_out = ("incumbent_recipe", "incumbent_runs", "interleaving")
    cost = ("tuning_trials", "tuning_device_s")
    provenance = record.certificate.get("provenance", {})
    return {
        "verification": {k: v for k, v in verification.items() if k not in left_out},
        "provenance": {k: v for k, v in provenance.items() if k in cost},
    }


def _as_json(record: TrialRecord) -> str:
    public = record.model_copy(update={"environment": _public(record.environment)})
    return strip_secrets(public.model_dump_json()).encode("utf-8", "replace").decode()
