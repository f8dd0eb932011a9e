import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.command import TINY_STUDY
from helpers.making import make_record
from helpers.tracking.stores import store_of

from tune_speed.components.plugins import registry
from tune_speed.core.errors import ConfigError, ServiceError, StorageError
from tune_speed.core.records import PROTOCOL_VERSION, TrialRecord
from tune_speed.core.words import Device
from tune_speed.study.file import StudyFile, load_study
from tune_speed.tracking import Store, Tracker
from tune_speed.tuning import admission
from tune_speed.tuning.admission import pinned_device, refuse_changed_plugins, refuse_throw_away
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
            ledger.finished(record.model_copy(update={"device": Device.model_validate(device)}))
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


@pytest.fixture
def study(tmp_path: Path) -> StudyFile:
    (tmp_path / "tiny.yaml").write_text(TINY_STUDY)
    return load_study(tmp_path / "tiny.yaml")


def begun(folder: Path, study: StudyFile, **changes: object) -> None:
    with Ledger(folder) as ledger:
        admission.begin(ledger, study, "w")
    path = folder / "ledger.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes) + "\n")


def admitted(
    study: StudyFile, folder: Path, *, workload_hash: str = "w", uri: str = "sqlite:////none.db"
) -> admission.Admitted:
    return admission.Admitted(study, folder, Store(uri), workload_hash, None)


def resumed(folder: Path, study: StudyFile, workload_hash: str = "w") -> None:
    with Ledger(folder) as ledger:
        found = admitted(study, folder, workload_hash=workload_hash)
        admission.admit(ledger, found, resume=True)


def test_study_keeps_its_measuring_rules(tmp_path: Path, study: StudyFile) -> None:
    begun(tmp_path, study)
    resumed(tmp_path, study)
    begun(tmp_path / "other", study, protocol_version=99, tune_speed="99.0")
    said = rf"protocol {PROTOCOL_VERSION}, and its ledger is of tune_speed 99\.0 with protocol 99"
    with pytest.raises(ConfigError, match=said):
        resumed(tmp_path / "other", study)


def test_changed_study_is_refused_by_its_fields(tmp_path: Path, study: StudyFile) -> None:
    begun(tmp_path, study)
    changed = load_study(tmp_path / "tiny.yaml", overrides=["epochs=3", "batch_size=25"])
    with pytest.raises(ConfigError) as caught:
        resumed(tmp_path, changed)
    said = str(caught.value)
    assert "search space, but these fields changed: recipe.epochs.low, recipe.epochs.high," in said
    assert ", recipe.batch_size.choices, recipe.epochs, recipe.batch_size (" in said
    assert study.space.hash not in said and "recipe.model" not in said


def test_study_whose_data_changed_is_refused_with_that(tmp_path: Path, study: StudyFile) -> None:
    begun(tmp_path, study)
    with pytest.raises(ConfigError, match="but its data changed"):
        resumed(tmp_path, study, "v")


def test_ledger_without_its_header_is_not_gone_on_with(tmp_path: Path, study: StudyFile) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.proposed(Proposal("t0000", {}), seed=0)
    with pytest.raises(StorageError, match=r"ledger\.jsonl:1: a ledger's first event must be"):
        resumed(tmp_path, study)


def test_empty_ledger_says_how_it_is_rebuilt(tmp_path: Path, study: StudyFile) -> None:
    with pytest.raises(ConfigError, match=r"the ledger of tiny in .* is empty.*--from-mlflow"):
        resumed(tmp_path, study)


def in_mlflow(uri: str, study: StudyFile, records: list[TrialRecord], **tags: str) -> None:
    same = {"space_hash": study.space.hash, "workload_hash": "w"}
    same["protocol_version"] = str(PROTOCOL_VERSION)
    named = {"study": study.name, "study_tags": same | tags, "search_id": "s1"}
    tracker = Tracker(Store(uri), **named, linger_s=0.02)
    for record in records:
        tracker.trial_finished(record=record)
    assert tracker.close(timeout_s=60) == ()


def test_lost_ledger_is_rebuilt_with_whole_records(tmp_path: Path, study: StudyFile) -> None:
    uri = store_of([], folder=tmp_path)
    records = [
        make_record(trial_id=f"t{i:04d}").model_copy(
            update={"study": "tiny", "finished_at": f"2026-11-26T0{9 - i}:00:00+00:00"}
        )
        for i in range(3)
    ]
    in_mlflow(uri, study, records)
    assert admission.rebuild(admitted(study, tmp_path / "tiny", uri=uri)) == 3
    with pytest.raises(ConfigError, match="rebuilds a ledger that was lost, but that of tiny"):
        admission.rebuild(admitted(study, tmp_path / "tiny", uri=uri))
    with Ledger(tmp_path / "tiny") as again:
        assert list(again.records.values()) == records[::-1]  # As they ended.
        assert [again.proposals[r.trial_id].params for r in records] == [r.params for r in records]
        assert again.header is not None and again.header["search_id"] == "s1"
        admission.admit(again, admitted(study, again.folder), resume=True)


def test_trial_of_a_foreign_name_is_refused(tmp_path: Path, study: StudyFile) -> None:
    uri = store_of([], folder=tmp_path)
    record = make_record(trial_id="../t0000").model_copy(update={"study": "tiny"})
    in_mlflow(uri, study, [record])
    with pytest.raises(StorageError, match=r"called t0000 or so, but got '\.\./t0000'"):
        admission.rebuild(admitted(study, tmp_path / "tiny", uri=uri))


def test_rebuilding_that_is_stopped_leaves_no_part_and_can_be_said_again(
    tmp_path: Path, study: StudyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, folder = store_of([], folder=tmp_path), tmp_path / "tiny"
    records = [
        make_record(trial_id=f"t{i:04d}").model_copy(update={"study": "tiny"}) for i in range(3)
    ]
    in_mlflow(uri, study, records)
    take_over, taken = Ledger.take_over, list[str]()

    def stopped_at_the_third(ledger: Ledger, record: TrialRecord) -> None:
        taken.append(record.trial_id)
        if len(taken) == 3:
            raise KeyboardInterrupt
        take_over(ledger, record)

    monkeypatch.setattr(Ledger, "take_over", stopped_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        admission.rebuild(admitted(study, folder, uri=uri))
    with Ledger(folder) as ledger:
        assert not ledger.proposals
    assert admission.rebuild(admitted(study, folder, uri=uri)) == 3
    with Ledger(folder) as ledger:
        assert set(ledger.records) == {"t0000", "t0001", "t0002"}
    assert {each.name for each in folder.iterdir()} == {"ledger.jsonl", "study.yaml", "trials"}


def test_what_another_search_left_in_mlflow_is_not_taken(tmp_path: Path, study: StudyFile) -> None:
    uri = store_of([], folder=tmp_path)
    record = make_record().model_copy(update={"study": "tiny"})
    folder = tmp_path / "tiny"
    with pytest.raises(ServiceError, match="there is no study"):
        admission.rebuild(admitted(study, folder, uri=uri))
    in_mlflow(uri, study, [record], space_hash="another")
    with pytest.raises(
        ConfigError, match=r"search space, but its hash was another and is \w+ \(run "
    ):
        admission.rebuild(admitted(study, folder, uri=uri))
    with Ledger(folder) as ledger:
        assert ledger.header is None


@pytest.mark.parametrize("is_resumed", [True, False])
def test_missing_study_file_is_written(tmp_path: Path, study: StudyFile, is_resumed: bool) -> None:
    folder = tmp_path / "tiny"
    begun(folder, study)
    (folder / "study.yaml").unlink()
    with Ledger(folder) as ledger:
        admission.admit(ledger, admitted(study, folder), resume=is_resumed)
        admission.begin(ledger, study, "w")
    assert load_study(folder / "study.yaml").space.hash == study.space.hash


def test_study_file_that_is_a_link_is_replaced(tmp_path: Path, study: StudyFile) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "tiny" / "study.yaml").symlink_to(tmp_path / "notes")
    begun(tmp_path / "tiny", study)
    assert (tmp_path / "notes").read_text() == "mine"
    assert load_study(tmp_path / "tiny" / "study.yaml").name == study.name


def test_study_keeps_its_name(tmp_path: Path, study: StudyFile) -> None:
    begun(tmp_path, replace(study, name="former"))
    with pytest.raises(ConfigError, match="its name was former and is tiny"):
        resumed(tmp_path, study)


def test_a_search_says_which_data_it_found(study: StudyFile) -> None:
    found = admission.prepare_workload(study.workload, download=False, on_progress=lambda *_: None)
    assert "10 classes (0, 1, 2, 3, 4 …)" in found.lines[0]


JOB = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0123"


def test_results_in_the_working_directory_of_a_job_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"got {JOB}/studies/tiny and sqlite:///{JOB}/mlflow.db"):
        refuse_throw_away(Path(f"{JOB}/studies/tiny"), Store(f"sqlite:///{JOB}/mlflow.db"))
    with pytest.raises(ConfigError, match="Set MLFLOW_TRACKING_URI: "):
        refuse_throw_away(Path("/shared/studies/tiny"), Store(f"sqlite:///{JOB}/mlflow.db"))


def test_results_anywhere_else_are_kept() -> None:
    refuse_throw_away(Path("/shared/studies/tiny"), Store("http://127.0.0.1:5000"))
