"""When the target counts as met, by hand-made tables, and what a workload's identity is."""

import json
from collections.abc import Sequence

import pytest
from making import make_evaluation
from pydantic import ValidationError
from training import make_workload

from tune_speed.core.records import Evaluation
from tune_speed.data.datasets.builtin import Cifar10, Digits
from tune_speed.data.split import SplitConfig, SplitSizes
from tune_speed.training.workload import WORKLOADS, Target, Workload

NUM_TRAIN = 320
"""Ten steps of 32 samples, as `make_evaluation` counts them."""


def curve(*accuracies: float, steps: Sequence[int] | None = None) -> list[Evaluation]:
    """Returns evaluations at each epoch (or at `steps`), on a training clock of 1 s a step."""
    at = steps or range(0, 10 * len(accuracies), 10)
    return [
        make_evaluation(step=step, train_s=float(step), accuracy=accuracy)
        for step, accuracy in zip(at, accuracies, strict=True)
    ]


def time_of(mode: str, evaluations: list[Evaluation], *, at_end: bool = True) -> float | None:
    workload = make_workload(target=0.9, mode=mode)
    return workload.time_to_target(evaluations, num_train=NUM_TRAIN, at_end=at_end)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ((0.1, 0.5, 0.9), 20.0),  # exactly the target is enough
        ((0.1, 0.95, 0.95, 0.89), None),  # passes on the way count for nothing
        ((0.1, 0.2, 0.3), None),
        ((0.1,), None),
        ((), None),
    ],
)
def test_fixed_length_looks_at_the_end_alone(
    accuracies: tuple[float, ...], expected: float | None
) -> None:
    assert time_of("fixed_length", curve(*accuracies)) == expected
    assert time_of("fixed_length", curve(*accuracies), at_end=False) is None


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ((0.1, 0.95, 0.95), 10.0),  # the first of the two
        ((0.1, 0.95, 0.8, 0.95, 0.9, 0.1), 30.0),
        ((0.1, 0.95, 0.8, 0.95), None),  # a single pass at the very end
        ((0.1, 0.95, 0.8, 0.95, 0.8), None),  # never twice in a row
        ((0.95,), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("at_end", [True, False])
def test_anytime_needs_two_passes_in_a_row(
    accuracies: tuple[float, ...], expected: float | None, at_end: bool
) -> None:
    assert time_of("anytime", curve(*accuracies), at_end=at_end) == expected


def test_anytime_takes_no_evaluation_off_the_grid_as_confirmation() -> None:
    passes = (0.1, 0.95, 0.95)
    assert time_of("anytime", curve(*passes, steps=(0, 10, 11))) is None
    assert time_of("anytime", curve(*passes, steps=(0, 12, 20))) == 12.0


def test_anytime_asks_the_first_evaluation_after_each_point_of_the_grid() -> None:
    workload = make_workload(target=0.9, mode="anytime", eval_every_samples=100)
    # 32 samples a step: the points 100, 200, 300 are reached by the steps 4, 7, 10.
    evaluations = curve(0.1, 0.1, 0.95, 0.95, steps=(0, 4, 7, 10))
    assert workload.time_to_target(evaluations, num_train=NUM_TRAIN, at_end=False) == 7.0


def test_target_may_be_on_macro_f1() -> None:
    evaluation = make_evaluation(accuracy=0.9)  # its macro F1 is half of it
    workload = Workload(dataset=Digits(), target=Target(metric="macro_f1", value=0.5))
    assert workload.metric_of(evaluation) == 0.45
    assert workload.time_to_target([evaluation], num_train=320, at_end=True) is None


def test_grid_is_the_training_part_by_default() -> None:
    assert make_workload().grid(num_train=123) == 123
    assert make_workload(eval_every_samples=50).grid(num_train=123) == 50


def test_identity_leaves_out_where_the_data_lies() -> None:
    identities = {
        Workload(dataset=Cifar10(root=root), target=Target(value=0.9)).identity(data_hash="d")
        for root in ("data", "/elsewhere")
    }
    assert len(identities) == 1


def test_identity_covers_everything_else() -> None:
    workload = make_workload(target=0.9)
    changes: dict[str, object] = {
        "dataset": Digits(scale=2),
        "target": Target(value=0.91),
        "mode": "anytime",
        "max_train_s": 1.0,
        "split": SplitConfig(seed=1),
        "eval_every_samples": 100,
        "eval_batch_size": 10,
        "certify_on": "train+validation",
    }
    assert set(changes) == set(Workload.model_fields) - {"name"}
    others = [workload.model_copy(update={name: value}) for name, value in changes.items()]
    identities = {w.identity(data_hash="d") for w in (workload, *others)}
    assert len(identities | {workload.identity(data_hash="other")}) == len(changes) + 2


def test_identity_of_a_workload_that_certifies_on_train_is_as_before_there_was_another() -> None:
    plain = Workload(dataset=Digits(), target=Target(value=0.9))
    said = Workload(dataset=Digits(), target=Target(value=0.9), certify_on="train")
    assert "certify_on" not in said.model_dump(mode="json")
    # As computed by the version before the field.
    assert plain.identity(data_hash="d") == said.identity(data_hash="d") == "f1386e401892fa31"


def test_a_long_tail_is_certified_on_the_training_part_alone() -> None:
    split = SplitConfig(train_samples=300, long_tail=0.1)
    with pytest.raises(ValidationError, match="certify_on must be train with"):
        make_workload(split=split, certify_on="train+validation")


def test_built_in_workload_has_its_name_and_others_are_described() -> None:
    assert WORKLOADS["digits"].label == "digits"
    assert make_workload(target=0.5).label == "digits-accuracy-0.5"


def test_a_name_is_what_boards_show_and_no_part_of_the_identity() -> None:
    workload = make_workload(target=0.5)
    named = Workload.model_validate({**workload.model_dump(), "dataset": "digits", "name": "mine"})
    assert named.label == "mine" and "name" not in workload.model_dump()
    assert named.identity(data_hash="d") == workload.identity(data_hash="d")


def test_sizes_are_known_without_the_data() -> None:
    # 359 of 1797 for the test part, then 20 % of 1438 for validation.
    assert WORKLOADS["digits"].sizes() == SplitSizes(train=1150, validation=288, test=359)


def test_workload_survives_json() -> None:
    workload = make_workload(target=0.9, mode="anytime", split=SplitConfig(train_samples=50))
    assert Workload.model_validate(json.loads(workload.model_dump_json())) == workload


@pytest.mark.parametrize(
    "fields",
    [
        {"target": {"value": 0.0}},
        {"target": {"value": 1.01}},
        {"target": {"value": 0.9, "metric": "loss"}},
        {"max_train_s": 0.0},
        {"eval_every_samples": 0},
        {"eval_batch_size": 0},
        {"mode": "sometimes"},
        {"epochs": 3},
    ],
)
def test_workload_that_cannot_work_is_refused(fields: dict[str, object]) -> None:
    good = {"dataset": {"name": "digits"}, "target": {"value": 0.9}}
    assert Workload.model_validate(good)
    with pytest.raises(ValidationError, match=next(iter(fields))):
        Workload.model_validate({**good, **fields})
