"""The device that a study is pinned to."""

from pathlib import Path

import pytest
from making import make_record

from tune_speed.components.plugins import registry
from tune_speed.core.errors import ConfigError
from tune_speed.tuning.admission import pinned_device, refuse_changed_plugins
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.policy.base import Proposal


def test_header_of_a_study_names_its_device(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        assert pinned_device(ledger) is None
        ledger.begin({"study": "tiny", "device_type": "NVIDIA H200"})
        assert pinned_device(ledger) == "NVIDIA H200"
    with Ledger(tmp_path) as again:
        assert pinned_device(again) == "NVIDIA H200"


def test_trials_name_the_device_where_the_header_does_not(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.begin({"study": "tiny", "device_type": None})
        for trial_id, device in (("t0000", ""), ("t0001", "2 x NVIDIA H200")):
            ledger.proposed(Proposal(trial_id, {}), seed=0)
            record = make_record(trial_id=trial_id)
            ledger.finished(record.model_copy(update={"device": device}))
        assert pinned_device(ledger) == "NVIDIA H200"


@pytest.mark.parametrize(
    ("loaded", "said"),
    [({"nets.py": "a" * 16}, None), ({"nets.py": "b" * 16}, "b" * 16), ({}, "not loaded")],
)
def test_study_keeps_the_source_of_its_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: dict[str, str], said: str | None
) -> None:
    monkeypatch.setattr(registry, "hashes", lambda: loaded)
    with Ledger(tmp_path) as ledger:
        ledger.begin({"study": "tiny"})
        ledger.proposed(Proposal("t0000", {}), seed=0)
        record = make_record(trial_id="t0000").model_copy(update={"plugins": {"nets.py": "a" * 16}})
        ledger.finished(record)
        if said is None:
            refuse_changed_plugins(ledger, name="tiny")
            return
        with pytest.raises(ConfigError, match=f"ran nets.py with source {'a' * 16}.*{said}"):
            refuse_changed_plugins(ledger, name="tiny")
