import json
from pathlib import Path
from typing import Any

import optuna
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status
from tune_speed.study.file import StudyFile, load_study
from tune_speed.study.settings import PriorFile
from tune_speed.training.workload import Workload
from tune_speed.tuning.driver.imported_trials import import_trials
from tune_speed.tuning.driver.prior_trials import CarriedOver
from tune_speed.tuning.policy.optuna_study import open_storage

STUDY = """
study: warm
workload: digits
recipe:
  model: resnet20
  optimizer:
    choices:
      sgd: {lr: {low: 0.01, high: 1.0, log: true}}
      adamw: {lr: {low: 0.0001, high: 0.1, log: true}}
  epochs: 4
  batch_size: {choices: [32, 64]}
search: {warm_start: [{file: old/runs.csv}, {file: "sqlite:///there.db"}, other]}
"""
SGD = {"optimizer": "sgd", "optimizer.sgd.lr": 0.1, "batch_size": 64}
ADAMW = {"optimizer": "adamw", "optimizer.adamw.lr": 0.01, "batch_size": 32}


@pytest.fixture
def study(tmp_path: Path) -> StudyFile:
    file = tmp_path / "warm.yaml"
    file.write_text(STUDY)
    return load_study(file)


def imported(warm: StudyFile, file: Path | str, **options: Any) -> CarriedOver:
    assert isinstance(warm.workload, Workload)
    given = PriorFile(file=str(file), **options)
    return import_trials(given, space=warm.space, workload=warm.workload)


def test_paths_start_at_the_files_folder(study: StudyFile, tmp_path: Path) -> None:
    own, address, other = study.search.warm_start
    assert isinstance(own, PriorFile) and own.file == str(tmp_path / "old" / "runs.csv")
    assert isinstance(address, PriorFile) and address.file == "sqlite:///there.db"
    assert other == "other"


# As `tune-speed list trials`, MLflow's export, W&B's export of a table and Optuna's data frame
# name their columns.
TABLES = {
    "dotted names": "optimizer,optimizer.sgd.lr,optimizer.adamw.lr,batch_size,final_metric,train_s",
    "mlflow": (
        "params.optimizer,params.optimizer.sgd.lr,params.optimizer.adamw.lr,params.batch_size,"
        "metrics.accuracy,metrics.train_s"
    ),
    "wandb": (
        "config/optimizer,config/optimizer/sgd/lr,config/optimizer/adamw/lr,config/batch_size,"
        "val_accuracy,train_s"
    ),
    "optuna": (
        "params_optimizer,params_optimizer.sgd.lr,params_optimizer.adamw.lr,params_batch_size,"
        "value,train_s"
    ),
}


@pytest.mark.parametrize("header", TABLES.values(), ids=TABLES)
def test_columns_are_found_by_tools_names(study: StudyFile, tmp_path: Path, header: str) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(f"{header}\nsgd,0.1,,64,0.98,2.5\nadamw,,0.01,32,0.95,1.5\n")
    found = imported(study, file)
    assert [trial.params for trial in found.trials] == [SGD, ADAMW]
    assert [trial.outcome.status for trial in found.trials] == [Status.REACHED, Status.MISSED]
    assert [trial.outcome.train_s for trial in found.trials] == [2.5, 1.5]
    assert [trial.outcome.curve.metric.tolist() for trial in found.trials] == [[0.98], [0.95]]
    assert not any(trial.same_times for trial in found.trials)
    assert found.left_out == {}


def test_short_name_is_that_of_the_chosen_branch(study: StudyFile, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("optimizer,lr,batch_size,accuracy\nsgd,0.1,64,0.98\nadamw,0.01,32,0.95\n")
    assert [trial.params for trial in imported(study, file).trials] == [SGD, ADAMW]


WHOLE = {**SGD, "accuracy": 0.98, "note": "a\u2028b\x85c"}
ROW = json.dumps(WHOLE, ensure_ascii=False)


def test_lines_of_json_may_hold_any_text_and_any_number(study: StudyFile, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(f"\ufeff{ROW}\r\n{ROW.replace('0.98', '9' * 400)}\n", encoding="utf-8")
    found = imported(study, file)
    assert [trial.params for trial in found.trials] == [SGD]
    assert found.left_out == {"no accuracy (line 2)": 1}


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 100_000, '{"accuracy": ', "[]"])
def test_a_line_that_cannot_be_read_is_named(study: StudyFile, tmp_path: Path, text: str) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(f"{ROW}\n{text}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"runs\.jsonl.*line 2") as refused:
        imported(study, file)
    assert "\n" not in str(refused.value)


HUGE = pa.DictionaryArray.from_arrays(pa.array([0] * 1000), ["x" * 1_000_000])
TOO_MUCH = {
    "rows": pa.table({"accuracy": pa.array([0.5] * 100_001)}),
    "bytes": pa.table({"optimizer": HUGE, "accuracy": [0.5] * 1000}),
    "year": pa.table({"accuracy": [0.5], "at": pa.array([10**15], pa.timestamp("s"))}),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_table_that_is_too_much_is_refused(study: StudyFile, tmp_path: Path, what: str) -> None:
    file = tmp_path / "runs.parquet"
    pq.write_table(TOO_MUCH[what], file)
    assert file.stat().st_size < 100_000
    with pytest.raises(ConfigError, match=r"runs\.parquet") as refused:
        imported(study, file)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("address", ["nosuch://x", "mysql://me:secret@localhost/x", "sqlite:////"])
def test_address_is_refused_without_its_password(study: StudyFile, address: str) -> None:
    with pytest.raises(ConfigError, match=address.partition("://")[0]) as refused:
        imported(study, address)
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(ConfigError):  # As `search.storage`, too.
        open_storage(address)


def test_columns_of_other_names_are_said(study: StudyFile, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("opt,learning_rate,bs,top1\nsgd,0.1,64,0.98\n")
    with pytest.raises(ConfigError, match=r"columns are opt, learning_rate, bs, top1.*Say which"):
        imported(study, file)
    columns = {
        "optimizer": "opt",
        "optimizer.sgd.lr": "learning_rate",
        "batch_size": "bs",
        "accuracy": "top1",
    }
    assert [trial.params for trial in imported(study, file, columns=columns).trials] == [SGD]


def test_each_unusable_row_is_named_with_its_reason(study: StudyFile, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    rows = [
        "sgd,0.1,64,0.98,finished",
        "sgd,5.0,64,0.98,finished",
        "sgd,,64,0.98,finished",
        "sgd,0.1,48,0.98,finished",
        "sgd,0.1,64,,finished",
        "sgd,0.1,64,0.5,crashed",
        "sgd,0.1,64,0.5,crashed",
        "rmsprop,0.1,64,0.5,finished",
        "sgd,fast,64,0.5,finished",
    ]
    file.write_text("\n".join(["optimizer,lr,batch_size,accuracy,State", *rows]) + "\n")
    found = imported(study, file)
    assert [trial.params for trial in found.trials] == [SGD]
    assert found.left_out == {
        "a value of optimizer.sgd.lr that this space has not (line 3, line 10)": 2,
        "no value of optimizer.sgd.lr (line 4)": 1,
        "a value of batch_size that this space has not (line 5)": 1,
        "no accuracy (line 6)": 1,
        "a run that is crashed (line 7, line 8)": 2,
        "a value of optimizer that this space has not (line 9)": 1,
    }


def test_json_lines_and_parquet_are_read_alike(study: StudyFile, tmp_path: Path) -> None:
    every = dict.fromkeys([*SGD, *ADAMW])
    rows = [{**every, **SGD, "accuracy": 0.98}, {**every, **ADAMW, "accuracy": 0.95}]
    lines, nested, table = (tmp_path / n for n in ("runs.jsonl", "nested.jsonl", "runs.parquet"))
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    by_name = [{"config": SGD, "summary": {"accuracy": 0.98}}]
    nested.write_text("".join(json.dumps(row) + "\n" for row in by_name))
    pq.write_table(pa.Table.from_pylist(rows), table)
    assert [trial.params for trial in imported(study, lines).trials] == [SGD, ADAMW]
    assert [trial.params for trial in imported(study, nested).trials] == [SGD]
    assert [trial.params for trial in imported(study, table).trials] == [SGD, ADAMW]


@pytest.mark.parametrize("kind", ["journal", "database"])
def test_optuna_storage_is_read_to_its_ends(study: StudyFile, tmp_path: Path, kind: str) -> None:
    address = f"sqlite:///{tmp_path / 'o.db'}" if kind == "database" else str(tmp_path / "o.log")
    storage: Any = address
    if kind == "journal":
        storage = JournalStorage(JournalFileBackend(address))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    theirs = optuna.create_study(study_name="theirs", storage=storage, direction="maximize")
    distributions = {
        "optimizer": CategoricalDistribution(["sgd", "adamw"]),
        "lr": FloatDistribution(0.001, 1.0),
        "batch_size": CategoricalDistribution([32, 64]),
    }
    params = {"optimizer": "sgd", "lr": 0.1, "batch_size": 64}
    for state, value, curve in (
        (TrialState.COMPLETE, 0.5, {0: 0.9, 1: 0.98}),
        (TrialState.COMPLETE, 0.96, {}),
        (TrialState.PRUNED, None, {0: 0.1}),
    ):
        trial = create_trial(
            state=state,
            params=params,
            distributions=distributions,
            value=value,
            intermediate_values=curve,
            user_attrs={"train_s": [1.0, 2.0]},
        )
        theirs.add_trial(trial)
    found = imported(study, address, study="theirs")
    assert [trial.params for trial in found.trials] == [SGD, SGD]
    assert [trial.outcome.curve.metric.tolist() for trial in found.trials] == [[0.98], [0.96]]
    assert [trial.outcome.train_s for trial in found.trials] == [2.0, 2.0]
    assert found.left_out == {"a run that is pruned (trial 2)": 1}
    with pytest.raises(ConfigError, match="must be a readable"):
        imported(study, address, study="none")


def test_what_is_no_such_file_is_refused(study: StudyFile, tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    (tmp_path / "broken.jsonl").write_text("[1]\n")
    (tmp_path / "notes.txt").write_text("hello\n")
    for name in ("missing.csv", "broken.parquet", "broken.jsonl", "notes.txt", "missing.log"):
        with pytest.raises(ConfigError, match=f"{name} must be a readable"):
            imported(study, tmp_path / name)
