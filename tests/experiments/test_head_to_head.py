import math

import pytest
from helpers.making import make_record, make_run
from helpers.texts import Texts

from tune_speed.api.trained import Compared, Trained
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.stats import Sample
from tune_speed.experiments.rerun import train_seeds
from tune_speed.experiments.run_summary import (
    judge,
    pairs_needed,
)
from tune_speed.study.file import RecipeFile, parse_recipe

RECIPE = """
workload: digits
recipe: {model: resnet20, optimizer: {sgd: {lr: 0.1}}, lr_schedule: one_cycle, epochs: 4,
  batch_size: 50}
run: {device: cpu, cpu_threads: 1}
"""


def make_seeds(*times_s: float | None, epochs: int = 4) -> TrialRecord:
    """Returns a record with one run a seed; None is a miss of 9 s."""
    runs = [
        make_run(Status.MISSED, time_s=9.0, accuracy=0.8, seed=seed)
        if time_s is None
        else make_run(time_s=time_s, seed=seed)
        for seed, time_s in enumerate(times_s)
    ]
    recipe = {"model": {"resnet20": {}}, "epochs": epochs}
    return make_record(runs=tuple(runs)).model_copy(update={"recipe": recipe})


def compared(a: TrialRecord, b: TrialRecord | None) -> Compared:
    sides = (("fast.yaml", a), ("slow.yaml", b))
    both = [Trained(name=name, record=record, was_stopped=False) for name, record in sides]
    return Compared(a=both[0], b=both[1], was_stopped=False)


def make_file(name: str, *overrides: str) -> RecipeFile:
    return parse_recipe(RECIPE, file=name, overrides=overrides, check_data=False)


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        train_seeds(
            make_file("a.yaml"),
            make_file("b.yaml", *overrides),
            seeds=1,
            download=False,
            on_progress=lambda done, total: None,
            on_line=lambda line: None,
        )
    return str(refused.value)


@pytest.mark.parametrize(
    ("override", "field", "given"),
    [
        ("workload.target.value=0.9", "workload.target.value", "0.97 in a.yaml and 0.9 in b.yaml"),
        ("workload.mode=anytime", "workload.mode", "fixed_length in a.yaml and anytime in b.yaml"),
        ("workload.split.seed=5", "workload.split.seed", "and 5 in b.yaml"),
        ("run.cpu_threads=2", "run.cpu_threads", "1 in a.yaml and 2 in b.yaml"),
    ],
)
def test_what_differs_is_named_and_refused(override: str, field: str, given: str) -> None:
    message = refusal(override)
    assert f"{field}: must be the same for both recipes, but got" in message
    assert given in message
    assert f"--set {field}=VALUE" in message
    assert message.count("must be the same") == 1


def test_recipe_may_differ_in_every_way() -> None:
    message = refusal("epochs=9", "batch_size=25", "lr_schedule=constant", "run.cpu_threads=2")
    assert message.count("must be the same") == 1
    assert "run.cpu_threads: must be the same" in message


def test_factor_interval_and_p_value_by_hand() -> None:
    # ln(B / A) is ln 2 with deviations -0.1, 0, 0.1: SD 0.1, standard error 0.1 / sqrt(3).
    a = make_seeds(1.0, 1.0, 1.0)
    b = make_seeds(*(2 * math.exp(x) for x in (-0.1, 0.0, 0.1)))
    verdict = judge(a, b)
    half = 4.302653 * 0.1 / math.sqrt(3)  # Student's t with 2 degrees of freedom at 97.5 %
    assert (verdict.faster, verdict.is_decided, verdict.num_pairs) == ("a", True, 3)
    assert verdict.factor == pytest.approx(2)
    assert verdict.factor_low == pytest.approx(2 * math.exp(-half), rel=1e-5)
    assert verdict.factor_high == pytest.approx(2 * math.exp(half), rel=1e-5)
    # With 2 degrees of freedom the upper tail at t is 1/2 - t / (2 sqrt(2 + t²)).
    t = math.log(2) / (0.1 / math.sqrt(3))
    assert verdict.p_value == pytest.approx(0.5 - t / 2 / math.sqrt(2 + t * t), rel=1e-6)
    assert verdict.statement.startswith("A is 2 times as fast as B (95 % interval: 1.56 to 2.56;")


def test_verdict_is_the_same_from_the_other_side() -> None:
    a, b = make_seeds(1.0, 1.2, 1.1, 1.3), make_seeds(1.9, 2.0, 2.3, 2.2)
    ours, theirs = judge(a, b), judge(b, a)
    assert (ours.faster, theirs.faster) == ("a", "b")
    kept = {"factor", "factor_low", "factor_high", "p_value", "is_decided"}
    assert ours.model_dump(include=kept) == theirs.model_dump(include=kept)


def test_equal_recipes_are_not_decided_and_pairs_needed_are_told() -> None:
    verdict = judge(make_seeds(1.0, 1.1, 1.2), make_seeds(1.1, 1.1, 1.3))
    assert not verdict.is_decided
    assert "Not decided: A looks" in verdict.statement
    assert f"about {verdict.pairs_needed} pairs" in verdict.statement
    assert verdict.factor_low is not None and verdict.factor_low < 1


def test_needed_pairs_show_the_difference_in_four_of_five_duels() -> None:
    import numpy as np
    from scipy.stats import ttest_1samp

    # SD of ln 0.1 and a mean of 0.1: one deviation.
    slower = [Sample(math.exp(x), True) for x in (0.0, 0.1, 0.2)]
    needed = pairs_needed([Sample(1.0, True)] * 3, slower)
    assert needed is not None
    drawn = np.random.default_rng(0).normal(0.1, 0.1, size=(4000, needed))
    shown = ttest_1samp(drawn, 0.0, axis=1, alternative="greater").pvalue < 0.025
    assert 0.77 < shown.mean() < 0.86


MISSED = [None, None, None]


@pytest.mark.parametrize(
    ("a", "b", "p_value"),
    [
        ([1.0], [50.0], None),
        # All three signs of one kind.
        ([1.0, 1.0, 1.0], MISSED, 1 / 8),
        ([1.0, 1.1] * 4, [None] * 8, 1 / 256),
        (MISSED, MISSED, None),
        ([1.0, 1.1, 1.2], [2.0, 2.1, None], 1 / 8),
    ],
)
def test_few_pairs_and_misses_are_told(
    a: list[float | None], b: list[float | None], p_value: float | None, kept_text: Texts
) -> None:
    verdict = judge(make_seeds(*a), make_seeds(*b))
    assert (verdict.p_value, verdict.is_decided) == (p_value, p_value == 1 / 256)
    kept_text(compared(make_seeds(*a), make_seeds(*b)).parts()[0])


def test_only_seeds_that_both_have_are_compared() -> None:
    verdict = judge(make_seeds(1.0, 1.1, 1.2, 9.0), make_seeds(2.0, 2.1, 2.4))
    assert verdict.num_pairs == 3
    assert verdict == judge(make_seeds(1.0, 1.1, 1.2), make_seeds(2.0, 2.1, 2.4))


def test_stopped_duel_shows_what_is_done() -> None:
    alone = compared(make_seeds(1.0), None)
    assert "A = fast.yaml" in alone.parts()[0]
    fields = alone.as_dict()
    assert (fields["b"], fields["comparison"]) == (None, None)
    assert fields["a"]["statistics"]["k"] == 1
