import math

import pytest
from helpers.experiments.replications import (
    BOTH,
    estimate,
    figure,
    interaction,
    make_arm,
    make_claim,
    make_result,
    median,
)
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.experiments.replication.agreement import (
    NEGLIGIBLE,
    TINY,
    Own,
    agreements,
    verdict,
)
from tune_speed.study.replication import UNITS


def agreement(claim, arm=None, *, profile="full", **changes):
    arms = () if arm is None else (arm,)
    (row,) = agreements([claim], {"": make_result(*arms, **changes)}, profile=profile)
    return row


# Paper, ours, its interval, verdict: speed-ups, so 1 is no effect.
EFFECTS = [
    (1.87, 1.80, 1.70, 1.90, "yes"),
    (1.87, 1.30, 1.20, 1.40, "in direction"),
    (1.87, 2.50, 2.40, 2.60, "in direction"),
    (1.87, 1.30, 0.80, 1.60, "not decided"),
    (1.87, 1.30, 0.80, 2.10, "not decided"),
    (1.87, 1.30, 1.00, 2.00, "not decided"),
    (1.87, 0.80, 0.70, 0.90, "no"),
    (0.95, 0.80, 0.70, 0.90, "in direction"),
    (0.95, 1.20, 1.10, 1.30, "no"),
    (1.00, 1.01, 0.98, 1.04, "yes"),
    (1.00 + 1e-12, 1.01, 0.98, 1.04, "yes"),
    (1.00, 1.05, 1.02, 1.08, "no"),
    (1.00, 1.00, 0.90, 1.10, "yes"),
    (1.00, 1.01, 0.95, 1.11, "not decided"),
    (1.00, 0.98, 0.04, 22.0, "not decided"),
    (1.00, math.inf, 0.90, math.inf, "not decided"),
    (1.87, 1.85, None, None, "yes"),
    (1.87, 1.30, None, None, "not decided"),
    (1.03, 0.99, None, None, "not decided"),
    (1.00, 1.00, None, None, "yes"),
    (1.87, math.inf, 1.50, math.inf, "yes"),
    (1.87, math.inf, None, None, "not decided"),
]


# The same of accuracies.
FIGURES = [
    (93.0, 92.9, 92.7, 93.1, "yes"),
    (93.0, 92.0, 91.8, 92.2, "no"),
    (93.0, 91.0, None, None, "yes"),
    (93.0, 80.0, None, None, "not decided"),
]


@pytest.mark.parametrize(("name", "cases"), [("speed_up", EFFECTS), ("accuracy", FIGURES)])
def test_figures_agree_as_the_interval_says(name, cases):
    for paper, value, low, high, word in cases:
        found = verdict(make_claim(name, paper=paper), Own(value, low, high, 5))
        assert found[0] == word, (paper, value, low, high)


FLOATS, WIDTHS = st.floats(-2, 2), st.floats(0, 1)


@given(paper=FLOATS, value=FLOATS, below=WIDTHS, above=WIDTHS)
def test_gains_agree_whichever_way_is_up(paper, value, below, above):
    own = Own(value, value - below, value + above)
    mirrored = Own(-value, -value - above, below - value)
    found = verdict(make_claim("accuracy_gain", paper=paper), own)
    assert found == verdict(make_claim("accuracy_gain", paper=-paper), mirrored)
    if abs(paper) > TINY and found[0] in ("yes", "in direction"):
        assert min(paper, *own[:3]) > 0 or max(paper, *own[:3]) < 0


def test_row_has_both_figures_their_ratio_and_the_interval():
    row = agreement(make_claim(), make_arm(speed_up=estimate(1.30, 1.20, 1.40)))
    assert (row.claim, row.source, row.arm, row.part) == ("A claim.", "S0, Table I", BOTH, "")
    assert (row.paper, row.ours, row.low, row.high, row.n) == (1.87, 1.30, 1.20, 1.40, 5)
    assert (row.unit, row.ratio) == ("×", pytest.approx(1.30 / 1.87))
    assert (row.agrees, row.caveats) == ("in direction", ())


PINNED = "loader.pin_memory=true"
NO_GPU = "there is no GPU"
FAST = {"speed_up": estimate(1.9, 1.8, 2.0)}
FEW = make_arm("4 devices", not_applicable="few")
NO_PIN = make_arm(PINNED, not_applicable=NO_GPU)
ACCURATE = {"accuracy": figure(0.93, 0.92, 0.94)}
BIG = {"peak_memory_gib": median(10.0, 9.0, 11.0, confidence=0.97, n=6)}
# Of the claim, of the arm (None: it has no run), and of the result.
CASES = {
    "without an interval": ({}, {"speed_up": estimate(1.85, None, None, 1)}, {}),
    "a wide interval": ({}, {"speed_up": estimate(1.30, 0.80, 2.10)}, {}),
    "labels in another order": ({"arm": "precision=bf16 + accumulation_steps=2"}, FAST, {}),
    "not applicable": ({}, {"not_applicable": NO_GPU, **FAST}, {}),
    "a level is left out": ({}, None, {"arms": (make_arm("precision=bf16"), NO_PIN)}),
    "two levels are not applicable": (
        {"arm": f"{PINNED} + precision=bf16 + 4 devices"}, None, {"arms": (FEW, NO_PIN)},
    ),
    "no figure there": ({"paper": None}, FAST, {}),
    "no figure here": ({}, {}, {}),
    "runs that diverged": ({}, {"n": 2, "statuses": {"diverged": 2}}, {}),
    "no arm": ({}, None, {"profile": "cpu"}),
    "no part": ({"part": "cifar100"}, {}, {"profile": "cpu"}),
    "a score of a smaller profile": (
        {"figure": "accuracy", "paper": 93.0}, ACCURATE, {"profile": "cpu"},
    ),
    "a score in full": ({"figure": "accuracy", "paper": 93.0}, ACCURATE, {}),
    "an effect of a smaller profile": ({}, FAST, {"profile": "cpu"}),
    "seconds": (
        {"figure": "epoch_s", "paper": 300}, {"epoch_s": figure(300, 290, 310)}, {},
    ),
    "memory of a process": ({"figure": "peak_memory_gib", "paper": 10, "unit": "GB"}, BIG, {}),
    "memory of a GPU": (
        {"figure": "peak_memory_gib", "paper": 10, "unit": "GB"}, BIG, {"device": "NVIDIA H100"},
    ),
}  # fmt: skip


def test_what_can_be_said_of_a_claim_is_said_with_its_reasons(kept_text):
    told = []
    for name, (fields, own, options) in CASES.items():
        given = {"figure": "speed_up", **fields}
        arm = None if own is None else make_arm(**own)
        row = agreement(make_claim(given.pop("figure"), **given), arm, **options)
        told.append(f"{name}: {row.agrees}, {row.ours}, {row.low}; {row.caveats}\n")
    kept_text("".join(told))


GAINS = {
    "accuracy_gain": {"accuracy_gain": estimate(-0.0185, -0.02, -0.01)},
    "time_increase": {"speed_up": estimate(1.4, 1.2, 1.5)},
    "time_saved": {"speed_up": estimate(1.4, 1.2, 1.5)},
}


def test_gains_have_no_ratio_and_there_is_none_to_a_figure_of_0():
    for name, fields in GAINS.items():
        row = agreement(make_claim(name, paper=0.01), make_arm(**fields))
        assert row.ours is not None and row.ratio is None
    for paper in (0.0, 1e-12):
        row = agreement(make_claim("success_rate", paper=paper), make_arm())
        assert row.ours is not None and row.ratio is None


def test_no_effect_on_accuracy_is_shown_to_within_a_point():
    claim = make_claim("accuracy_gain", paper=0)
    for low, high, word in ((-0.01, 0.01, "yes"), (-0.02, 0.005, "not decided")):
        arm = make_arm(accuracy_gain=estimate(0.0, low, high))
        assert agreement(claim, arm).agrees == word
    for name in GAINS:
        assert UNITS[name][0] in NEGLIGIBLE


FOUR = {"time_to_target_factor": 1.5, "time_to_target_pairs": 4}
# Figure, what the arm has, ours, interval, n.
READ = [
    ("speed_up", {"speed_up": estimate(1.25, 1.2, 1.3)}, (1.25, 1.2, 1.3, 5)),
    ("time_increase", {"speed_up": estimate(1.4, 1.2, 1.5)}, (40, 20, 50, 5)),
    ("time_saved", {"speed_up": estimate(1.25, 1.0, 2.0)}, (20, 0, 50, 5)),
    ("accuracy", {"accuracy": figure(0.9, 0.8, 1.0, n=3)}, (90, 80, 100, 3)),
    ("macro_f1", {"macro_f1": figure(0.9)}, (90, None, None, 5)),
    ("accuracy_gain", {"accuracy_gain": estimate(-0.01, -0.02, 0.0)}, (-1, -2, 0, 5)),
    ("success_rate", {}, (100, 56.6, 100, 5)),
    ("epoch_s", {"epoch_s": figure(3.0, 2.9, 3.1)}, (3.0, 2.9, 3.1, 5)),
    ("expected_time_ratio", FOUR, (1.5, None, None, 4)),
    ("expected_time_ratio", {**FOUR, "time_to_target_low": 1.1, "time_to_target_high": 1.9},
     (1.5, 1.1, 1.9, 4)),
    ("expected_time_ratio", {**FOUR, "time_to_target_low": 1.1}, (1.5, 1.1, None, 4)),
    ("epochs_to_convergence", {"epochs_to_convergence": median(7, 5, 9, confidence=0.97)},
     (7, 5, 9, 5)),
    ("epochs_to_convergence", {"epochs_to_convergence": median(7, 5, 9, confidence=0.75)},
     (7, None, None, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fields", "expected"), READ)
def test_figure_is_read_from_the_arm(name, fields, expected):
    row = agreement(make_claim(name), make_arm(**fields), device="NVIDIA H100")
    assert (row.ours, row.low, row.high, row.n) == pytest.approx(expected)


def test_what_never_came_to_pass_is_infinite():
    arm = make_arm(epochs_to_convergence=median(None, n=3), time_to_target_pairs=3)
    for name in ("epochs_to_convergence", "expected_time_ratio"):
        row = agreement(make_claim(name), arm)
        assert (row.ours, row.is_infinite, row.ratio) == (None, True, None)
        assert row.agrees == "not decided"


def test_synergy_is_the_interaction_of_the_arms_levels():
    effects = (interaction(1.2, 1.1, 1.3), interaction(9.0, 8.0, 10.0, name="a × b"))
    claim = make_claim("synergy", paper=1.15)
    row = agreement(claim, make_arm(), effects=effects)
    assert (row.ours, row.low, row.high, row.agrees) == (1.2, 1.1, 1.3, "yes")
    assert agreement(claim, make_arm()).agrees == "no runs"


def test_runs_that_ended_badly_are_caveats_of_arm_and_base():
    ill = {"statuses": {"reached": 3, "diverged": 2}, "is_lr_at_edge": True}
    arm = make_arm(**ill, speed_up=estimate(1.8, 1.7, 1.9), notes=("a cold start",))
    base = make_arm("base", statuses={"failed": 1, "reached": 4})
    row = agreement(make_claim(defects=["copied"]), arm, arms=(base, arm))
    assert row.caveats == (
        "copied",
        f"2 of 5 runs of `{BOTH}` ended diverged",
        f"`{BOTH}`: the best learning rate is at the end of those tried",
        "a cold start",
        "1 of 5 runs of `base` ended failed",
    )
    alone = agreement(make_claim("accuracy"), make_arm(accuracy=figure(0.9)), arms=(base, arm))
    assert "1 of 5 runs of `base` ended failed" not in alone.caveats
