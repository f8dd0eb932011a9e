import pytest
from grids import factors_of_run, lr_of_run, torch_lr_of_run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, SequentialLR

from tune_speed.components.schedules.decays import MultiStep
from tune_speed.study.fields import config_mistakes


@settings(max_examples=40)
@given(num_steps=st.integers(2, 120), data=st.data(), gamma=st.floats(0.01, 1))
def test_multi_step_equal_torch_step_by_step(num_steps, data, gamma):
    drops = data.draw(st.sets(st.integers(1, num_steps - 1), min_size=1, max_size=5))
    config = MultiStep(milestones=[drop / num_steps for drop in sorted(drops)], gamma=gamma)
    theirs = torch_lr_of_run(lambda o: MultiStepLR(o, sorted(drops), gamma), num_steps)
    assert lr_of_run(config, num_steps) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
@settings(max_examples=40)
@given(
    rise=st.integers(1, 30),
    drops=st.sets(st.integers(1, 60), min_size=1, max_size=4),
    start=st.floats(0.01, 1),
)
@example(rise=5, drops={25, 55}, start=1 / 8)
def test_multi_step_after_a_warmup_equal_torch_which_counts_from_its_end(rise, drops, start):
    num_steps = rise + 61
    config = MultiStep(
        milestones=[(rise + drop) / num_steps for drop in sorted(drops)],
        warmup_frac=rise / num_steps,
        warmup_start=start,
    )

    def sequence(optimizer):
        parts = [
            LinearLR(optimizer, start, total_iters=rise),
            MultiStepLR(optimizer, sorted(drops)),
        ]
        return SequentialLR(optimizer, parts, milestones=[rise])

    assert lr_of_run(config, num_steps) == pytest.approx(torch_lr_of_run(sequence, num_steps))


@pytest.mark.parametrize("num_steps", [3, 7, 10, 49, 1000, 64_000])
def test_a_drop_comes_with_the_first_step_that_begins_at_its_milestone_or_later(num_steps):
    rates = lr_of_run(MultiStep(milestones=[1 / 3]), num_steps)
    first = next(k for k in range(num_steps) if 3 * k >= num_steps)
    assert rates[first - 1 : first + 1] == [1.0, 0.1]


def test_defaults_are_the_drops_of_the_resnet_paper():
    rates = lr_of_run(MultiStep(), 64_000)
    assert [k for k in range(1, 64_000) if rates[k] != rates[k - 1]] == [32_000, 48_000]
    assert rates[-1] == pytest.approx(0.01)


def test_multi_step_leave_the_momentum_alone():
    assert {factors.momentum for factors in factors_of_run(MultiStep(), 10)} == {None}


@pytest.mark.parametrize("value", [[], [0.0], [1.0], [0.5, 0.5], [0.8, 0.4], 0.5, "0.5", ["0.5"]])
def test_milestones_must_be_a_list_of_ascending_shares(value):
    with pytest.raises(ValidationError, match="milestones"):
        MultiStep(milestones=value)


def test_milestones_must_not_lie_in_the_warmup():
    with pytest.raises(ValidationError, match=r"`milestones` must not lie in the warm-up.*0\.2"):
        MultiStep(milestones=[0.2, 0.8], warmup_frac=0.3)


def mistakes(milestones):
    tree = {"milestones": milestones, "gamma": {"low": 0.05, "high": 0.5, "log": True}}
    return [(mistake.path, mistake.must) for mistake in config_mistakes(MultiStep, tree, ())]


def test_in_a_search_milestones_are_a_fixed_list():
    assert mistakes([0.4, 0.8]) == []
    [(path, must)] = mistakes({"choices": [[0.4, 0.8], [0.5, 0.75]]})[:1]
    assert path == ("milestones", "choices", 0) and "single finite value" in must
    [(path, must)] = mistakes({"low": 0.1, "high": 0.9})
    assert path == ("milestones",) and "where a number belongs" in must


@pytest.mark.parametrize(
    ("value", "at", "must"),
    [
        ([0.4, 2.0], ("milestones", 1), "less than 1"),
        (["0.4"], ("milestones", 0), "must be a number"),
        ([0.8, 0.4], ("milestones",), "ascending order"),
        (0.5, ("milestones",), "list of one or more shares of the run, as in"),
    ],
)
def test_a_search_names_the_milestone_that_is_wrong(value, at, must):
    [(path, text)] = mistakes(value)
    assert path == at and must in text
