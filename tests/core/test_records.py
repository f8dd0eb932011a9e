import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import make_evaluation, make_record
from pydantic import ValidationError

from tune_speed.core.records import Status, TrialRecord

SCALARS = st.one_of(
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.booleans(),
    st.none(),
)


@given(st.dictionaries(st.text(min_size=1), SCALARS), st.sampled_from(list(Status)))
def test_record_reads_back_equal_from_json(params: dict[str, Any], status: Status) -> None:
    record = make_record(status=status, params=params)
    assert TrialRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize("status", list(Status))
def test_record_is_json_without_nan(status: Status) -> None:
    json.dumps(make_record(status=status).model_dump(mode="json"), allow_nan=False)


def test_nan_never_becomes_a_score() -> None:
    with pytest.raises(ValidationError, match="finite"):
        make_evaluation(accuracy=float("nan"))


def test_miss_has_no_time() -> None:
    assert make_record(status=Status.MISSED).time_to_target_s is None
    assert make_record(status=Status.REACHED, time_s=2.5).time_to_target_s == 2.5


def test_record_of_a_later_version_with_more_fields_still_reads() -> None:
    fields = make_record().model_dump(mode="json") | {"new_field": 1}
    assert TrialRecord.model_validate(fields) == make_record()
