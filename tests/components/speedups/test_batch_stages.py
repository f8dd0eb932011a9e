import pytest

from tune_speed.components.speedups.batches import BatchStages


def test_default_doubles_at_one_half_and_three_quarters():
    assert BatchStages().growth() == ((0.5, 1), (0.25, 2), (0.25, 4))


def test_lists_are_taken_as_in_yaml():
    config = BatchStages(factors=[1, 3], at=[0, 0.25])
    assert config.growth() == ((0.25, 1), (0.75, 3))
    assert config == BatchStages.model_validate_json('{"factors": [1, 3], "at": [0, 0.25]}')


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"factors": [1, 2]}, "as many entries"),
        ({"factors": [], "at": []}, "at least one"),
        ({"at": [0.1, 0.5, 0.75]}, "begin with 0"),
        ({"at": [0.0, 0.5, 0.5]}, "ascending"),
        ({"at": [0.0, 0.5, 1.0]}, "less than 1"),
        ({"factors": [1, 0, 4]}, "greater than or equal to 1"),
        ({"factors": [1, 1.5, 4]}, "valid integer"),
        ({"factors": 3}, "valid tuple"),
    ],
)
def test_impossible_stages_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        BatchStages(**fields)
