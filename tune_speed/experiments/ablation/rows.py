"""An ablation as rows for CSV: unrounded figures in the units that their columns name.

A cell is None where there is no figure, and `inf` where it is infinite, as a time to target is that
most runs missed.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from tune_speed.core.records import Status
from tune_speed.experiments.ablation.effects import Estimate
from tune_speed.experiments.ablation.result import AblationResult, ArmResult, Figure, Median

JOINT = "; "
"""Between sentences in one cell."""


def csv_rows(result: AblationResult) -> list[dict[str, Any]]:
    """Returns a row an arm, the base first."""
    return [_arm_row(result, arm) for arm in result.arms]


def effect_rows(result: AblationResult) -> list[dict[str, Any]]:
    """Returns a row for each contrast of each response.

    `kind` is that of `effects`: `alone`, `together`, `added`, `main` or `interaction`. `value`,
    `low` and `high` are factors where the response is `speed`, else differences.
    """
    return [
        {
            "study": result.study,
            "part": result.part,
            "design": result.design,
            "response": effect.response,
            "kind": effect.kind,
            "effect": effect.name,
            "unit": "factor" if effect.response == "speed" else "difference",
            **effect.estimate.model_dump(),
        }
        for effect in result.effects
    ]


def _arm_row(result: AblationResult, arm: ArmResult) -> dict[str, Any]:
    return {
        **_task(result),
        "arm": arm.name,
        "settings": json.dumps(arm.settings),
        "not_applicable": arm.not_applicable,
        "lr_factor": arm.lr_factor,
        "is_lr_at_edge": arm.is_lr_at_edge,
        "n": arm.n,
        **{status.value: arm.statuses.get(status, 0) for status in Status},
        "hits": arm.hits,
        "success_rate": arm.success_rate,
        "success_rate_low": arm.success_low,
        "success_rate_high": arm.success_high,
        **_mean("epoch_s", arm.epoch_s),
        **_mean("images_per_s", arm.images_per_s),
        **_mean("accuracy", arm.accuracy),
        **_mean("macro_f1", arm.macro_f1),
        **_mean("fed_ratio", arm.fed_ratio),
        **_median("peak_memory_gib", arm.peak_memory_gib),
        **_median("time_to_target_s", arm.time_to_target_s),
        **_expected(arm),
        **_median("epochs_to_convergence", arm.epochs_to_convergence),
        **_estimate("speed_up", arm.speed_up),
        **_estimate("s_mixed", arm.s_mixed),
        **_estimate("accuracy_gain", arm.accuracy_gain),
        **_estimate("macro_f1_gain", arm.macro_f1_gain),
        **_sooner(arm),
        "notes": JOINT.join(arm.notes),
        "stop_reasons": JOINT.join(arm.stop_reasons),
    }


def _task(result: AblationResult) -> dict[str, Any]:
    """Returns what all arms have in common."""
    return {
        "study": result.study,
        "part": result.part,
        "design": result.design,
        "workload": result.workload_name,
        "workload_hash": result.workload_hash,
        "metric": result.metric,
        "target": result.target,
        "mode": result.mode,
        "evaluated_on": result.evaluated_on,
        "device": result.device,
        "cpu_threads": result.cpu_threads,
        "timing": ", ".join(sorted(result.timing)),
        "confidence": result.confidence,
    }


def _mean(name: str, figure: Figure) -> dict[str, Any]:
    return {
        f"{name}_mean": figure.mean,
        f"{name}_sd": figure.sd,
        f"{name}_low": figure.low,
        f"{name}_high": figure.high,
        f"{name}_n": figure.n,
    }


def _median(name: str, figure: Median) -> dict[str, Any]:
    ends = {"median": figure.median, "low": figure.low, "high": figure.high}
    return {
        **{f"{name}_{end}": _or_inf(value, is_known=figure.n > 0) for end, value in ends.items()},
        f"{name}_confidence": figure.confidence if figure.n else None,
        f"{name}_n": figure.n,
    }


def _expected(arm: ArmResult) -> dict[str, Any]:
    times_s = {
        "expected_s": arm.expected_s,
        "expected_s_low": arm.expected_low_s,
        "expected_s_high": arm.expected_high_s,
    }
    return {name: _or_inf(time_s, is_known=arm.n > 0) for name, time_s in times_s.items()}


def _estimate(name: str, found: Estimate | None) -> dict[str, Any]:
    fields: Mapping[str, Any] = found.model_dump() if found else {}
    return {
        name: fields.get("value"),
        f"{name}_low": fields.get("low"),
        f"{name}_high": fields.get("high"),
        f"{name}_p": fields.get("p_value"),
        f"{name}_p_holm": fields.get("p_holm"),
        f"{name}_n": fields.get("n", 0),
    }


def _sooner(arm: ArmResult) -> dict[str, Any]:
    is_known = arm.time_to_target_pairs > 0
    has_ends = arm.time_to_target_low is not None
    return {
        "time_to_target_factor": _or_inf(arm.time_to_target_factor, is_known=is_known),
        "time_to_target_factor_low": arm.time_to_target_low,
        "time_to_target_factor_high": _or_inf(arm.time_to_target_high, is_known=has_ends),
        "time_to_target_factor_p": arm.time_to_target_p,
        "time_to_target_factor_p_holm": arm.time_to_target_p_holm,
        "time_to_target_factor_n": arm.time_to_target_pairs,
        "time_to_target_factor_method": arm.time_to_target_method or None,
    }


def _or_inf(value: float | None, *, is_known: bool) -> float | None:
    return math.inf if value is None and is_known else value
