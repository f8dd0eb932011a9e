"""Made-up results of ablations, claims on them, and records of shipped studies' points."""

from pathlib import Path

from helpers.making import make_record

from tune_speed.core.records import TrialRecord
from tune_speed.experiments.ablation.effects import Estimate
from tune_speed.experiments.ablation.result import (
    AblationResult,
    ArmResult,
    EffectResult,
    Figure,
    Median,
)
from tune_speed.study.file import load_study
from tune_speed.study.replication import ClaimConfig
from tune_speed.training.recipe import Recipe

NO_FIGURE = Figure(mean=None, low=None, high=None, sd=None, n=0)
NO_MEDIAN = Median(median=None, low=None, high=None, confidence=0.0, n=0)
BOTH = "accumulation_steps=2 + precision=bf16"


def estimate(value=None, low=None, high=None, n=5):
    return Estimate(value=value, low=low, high=high, p_value=None, n=n)


def figure(mean, low=None, high=None, n=5):
    return Figure(mean=mean, low=low, high=high, sd=None, n=n)


def median(value, low=None, high=None, *, confidence=0.0, n=5):
    return Median(median=value, low=low, high=high, confidence=confidence, n=n)


def make_arm(name=BOTH, **changes):
    fields = {
        "name": name, "settings": {}, "not_applicable": None, "lr_factor": None,
        "is_lr_at_edge": None, "tuning": (), "n": 5, "statuses": {"reached": 5}, "hits": 5,
        "success_low": 0.566, "success_high": 1.0, "epoch_s": NO_FIGURE, "images_per_s": NO_FIGURE,
        "accuracy": NO_FIGURE, "macro_f1": NO_FIGURE, "fed_ratio": NO_FIGURE,
        "peak_memory_gib": NO_MEDIAN, "time_to_target_s": NO_MEDIAN, "expected_s": None,
        "expected_low_s": None, "expected_high_s": None, "epochs_to_convergence": NO_MEDIAN,
        "speed_up": None, "accuracy_gain": None, "macro_f1_gain": None,
        "time_to_target_factor": None, "time_to_target_low": None, "time_to_target_high": None,
        "time_to_target_p": None, "time_to_target_p_holm": None, "time_to_target_pairs": 0,
        "time_to_target_method": "", "notes": (), "stop_reasons": (),
    }  # fmt: skip
    return ArmResult.model_validate({**fields, **changes})


def make_result(*arms, **changes):
    fields = {
        "study": "pair", "part": "", "design": "one-at-a-time", "seeds": 5, "retune": None,
        "workload_name": "digits", "workload_hash": "", "metric": "accuracy", "target": 0.9,
        "mode": "fixed_length", "evaluated_on": "test", "device": "cpu (2 threads, AMD EPYC)",
        "cpu_threads": 2, "environment": {}, "timing": {}, "cotenants": (), "confidence": 0.95,
        "arms": (make_arm("base"), *arms), "effects": (), "planned_runs": 10, "done_runs": 10,
    }  # fmt: skip
    return AblationResult.model_validate({**fields, **changes})


def interaction(value, low, high, name="accumulation_steps=2 × precision=bf16"):
    found = estimate(value, low, high)
    return EffectResult(response="speed", kind="interaction", name=name, estimate=found)


def make_claim(figure="speed_up", *, arm=BOTH, part="", **changes):
    ours = {"arm": arm, "figure": figure, "part": part}
    given = {} if "published" in changes else {"paper": 1.87, "source": "S0, Table I"}
    return ClaimConfig.model_validate({"says": "A claim.", "ours": ours, **given, **changes})


# --- Records of what the shipped studies propose by themselves

STUDIES = Path(__file__).parents[3] / "search_spaces"


def shipped(name: str, point: int) -> TrialRecord:
    study = load_study(STUDIES / f"{name}.yaml", check_data=False)
    tree = study.space.build(study.search.points_to_evaluate[point])
    changes = {
        "recipe": Recipe.model_validate(tree).model_dump(mode="json"),
        "workload": study.workload.model_dump(mode="json"),
    }
    return make_record(f"t{point:04}", study=name).model_copy(update=changes)
