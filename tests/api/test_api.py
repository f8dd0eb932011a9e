"""`tune_speed.search` and its like as a program or a notebook calls them: real runs on digits."""

import contextlib
import importlib.util
import inspect
import io
import logging
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.components.plugins import write
from helpers.imports import imported, printed_by
from helpers.making import make_record
from ray import cloudpickle

import tune_speed
from tune_speed.api.entry import in_python
from tune_speed.api.inputs import overrides_of, recipe_from, study_from
from tune_speed.api.progress import Progress, is_shown
from tune_speed.cli import ablate, search, train
from tune_speed.components.plugins import registry
from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.text import option, setting, switch
from tune_speed.experiments.certification.certify import CertifyResult
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.reporting.leaderboard.tables import boards_html
from tune_speed.study.file import load_study, study_of
from tune_speed.study.yaml import scan_yaml
from tune_speed.tracking.store.opening import within
from tune_speed.tracking.store.store import Store
from tune_speed.training.workload import WORKLOADS
from tune_speed.tuning.search import SearchResult

WORKLOAD: dict[str, Any] = {
    "dataset": {"name": "digits"},
    "target": {"metric": "accuracy", "value": 0.3},
    "max_train_s": 30,
    "split": {"validation_frac": 0.2, "train_samples": 300, "validation_samples": 100},
}
SPACE: dict[str, Any] = {
    "model": "resnet20",
    "optimizer": {"sgd": {"lr": {"low": 0.05, "high": 0.2, "log": True}}},
    "lr_schedule": "one_cycle",
    "epochs": {"low": 1, "high": 3},
    "batch_size": 50,
}
RECIPE: dict[str, Any] = {
    "workload": WORKLOAD,
    "recipe": {**SPACE, "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1},
    "run": {"device": "cpu", "cpu_threads": 1, "seed": 4},
}
CERTIFY = {"top": 2, "seeds": 1, "final": 0, "final_seeds": 1}
QUICK = {"search.policy": "random", "search.seed": 1, "search.concurrent": 1}


class Called(NamedTuple):
    """A search that another thread than the main one called."""

    study: tune_speed.Study
    out: str
    """What it printed."""
    log: list[logging.LogRecord]


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def kept_log() -> Iterator[list[logging.LogRecord]]:
    logger, handler = logging.getLogger("tune_speed"), _Kept()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.records
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def in_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def environment(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("TUNE_SPEED_STUDIES", str(folder / "studies"))
    patch.setenv("TUNE_SPEED_TURNSTILE", str(folder / "turnstile"))
    patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def called(folder: Path, session_cache: Path) -> Called:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, kept_log() as log:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        environment(patch, folder)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            study = in_thread(
                lambda: tune_speed.search(
                    SPACE,
                    workload=WORKLOAD,
                    study="tiny",
                    trials=2,
                    set={**QUICK, "certify": CERTIFY},
                )
            )
    return Called(study, out.getvalue(), log)


@pytest.fixture
def study(called: Called, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tune_speed.Study:
    environment(monkeypatch, folder)
    return called.study


# --- A search


@pytest.mark.slow
def test_search_from_another_thread_ends_with_all_trials_in_mlflow(study: tune_speed.Study) -> None:
    frame = study.results().trials("tiny", kind="estimate")
    assert sorted(frame["trial_id"]) == [r.trial_id for r in sorted_records(study)]
    assert len(frame) == 2
    assert not study.was_stopped


def sorted_records(study: tune_speed.Study) -> list[TrialRecord]:
    return sorted(study.records, key=lambda record: record.trial_id)


@pytest.mark.slow
def test_best_is_the_trial_that_mlflow_has_as_the_soonest(study: tune_speed.Study) -> None:
    frame = study.results().trials("tiny", kind="estimate").dropna(subset=["time_to_target_s"])
    assert study.best is not None
    assert study.best.time_to_target_s == pytest.approx(frame["time_to_target_s"].min())
    assert study.boards[0].rows[0].trial_id == study.best.trial_id


@pytest.mark.slow
def test_search_prints_nothing_and_logs_a_line_a_trial(called: Called) -> None:
    assert called.out == ""
    assert {record.levelno for record in called.log} == {logging.INFO}
    first = [record.getMessage()[:5] for record in called.log]
    assert sorted(word for word in first if word.startswith("t0")) == ["t0000", "t0001"]


@pytest.mark.slow
def test_study_reads_as_the_command_prints_it(study: tune_speed.Study, folder: Path) -> None:
    text = str(study)
    assert repr(study).startswith("Study('tiny': 2 trials, best ") and "\n" not in repr(study)
    for record in study.records:
        assert f"tiny/{record.trial_id}" in text and f"tiny/{record.trial_id}" in html(study)
    assert "2 trials: 2 reached" in text
    best = "tune-speed best --study tiny --export best.yaml && tune-speed train best.yaml\n"
    assert best in text
    assert study.folder == folder / "studies" / "tiny" and str(study.folder) in text


@pytest.mark.slow
def test_study_that_exists_must_be_resumed(study: tune_speed.Study) -> None:
    with pytest.raises(ConfigError, match="study tiny exists, with 2 finished trials"):
        tune_speed.search(SPACE, workload=WORKLOAD, study="tiny", trials=2, set=QUICK)


@pytest.mark.slow
def test_file_that_a_dict_became_has_the_same_space(study: tune_speed.Study) -> None:
    again = load_study(study.folder / "study.yaml")
    given = study_from(SPACE, workload=WORKLOAD, overrides=["study=tiny"], check_data=True)
    assert (again.name, again.space.hash, again.workload) == (
        "tiny",
        given.space.hash,
        given.workload,
    )


@pytest.mark.slow
def test_recipe_of_the_best_trains_to_the_same_loss(study: tune_speed.Study) -> None:
    assert study.best is not None and study.recipe is not None
    trained = tune_speed.train(study.recipe, seeds=2)
    of_trial = study.best.runs[0]
    assert [run.seed for run in trained.runs] == [of_trial.seed, of_trial.seed + 1]
    assert trained.runs[0].final is not None and of_trial.final is not None
    assert trained.runs[0].final.loss == of_trial.final.loss
    assert trained.times_s == tuple(run.time_to_target_s for run in trained.runs)


@pytest.mark.slow
def test_certification_that_is_complete_goes_on_without_a_run(study: tune_speed.Study) -> None:
    assert study.certification is not None
    for given in (study, study.name):
        again = tune_speed.certify(given, top=2, seeds=1, final=0, final_seeds=1)
        assert [r.runs for r in again.records] == [r.runs for r in study.certification.records]


@pytest.mark.slow
def test_the_fastest_are_certified_on_the_test_part(study: tune_speed.Study) -> None:
    certified = study.certification
    assert certified is not None and str(certified) in str(study)
    names = {record.trial_id for record in certified.records}
    assert names == {record.trial_id for record in study.records}
    assert {record.evaluated_on for record in certified.records} == {"test"}
    assert repr(certified).startswith("Certified('tiny': 2 recipes, ")
    assert "the winner's luck" in str(certified)
    assert [name for name in sorted(names) if f"tiny/{name}" not in html(certified)] == []


# --- Trainings


def test_training_says_of_each_seed_what_came_of_it() -> None:
    trained = in_thread(lambda: tune_speed.train(RECIPE, seeds=2, study="short"))
    assert [run.seed for run in trained.runs] == [4, 5]
    hits = sum(time_s is not None for time_s in trained.times_s)
    assert repr(trained).startswith(f"Trained('short': {hits} of 2 runs met the target")
    for run in trained.runs:
        assert run.final is not None
        assert f"{run.final.accuracy:.4f}" in str(trained)
        assert str(run.stop_reason) in str(trained)
        assert str(run.stop_reason).replace("<", "&lt;") in html(trained)


def test_training_that_misses_says_why() -> None:
    trained = tune_speed.train(RECIPE, set={"workload.target.value": 0.99})
    assert (trained.times_s, trained.has_reached) == ((None,), False)
    assert trained.runs[0].status is Status.MISSED
    reason = trained.runs[0].stop_reason
    assert (reason.kind, reason.figures["aim"]) == ("ended_below", 0.99)
    assert str(reason) in str(trained)


class _Interrupts(logging.Handler):
    """Sends Ctrl-C as soon as the first seed has ended."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(("seed 4: reached", "seed 4: missed")):
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_a_training_with_the_seeds_that_are_done() -> None:
    logger, handler = logging.getLogger("tune_speed"), _Interrupts()
    logger.addHandler(handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background ignores it.
    try:
        with kept_log():
            trained = tune_speed.train(RECIPE, seeds=3)
    finally:
        logger.removeHandler(handler)
    assert trained.was_stopped
    assert [run.seed for run in trained.runs] == [4]
    assert repr(trained).endswith(", stopped)")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_recipes_train_with_the_same_seeds() -> None:
    longer = {**RECIPE, "recipe": {**RECIPE["recipe"], "epochs": 2}}
    compared = tune_speed.train(RECIPE, against=longer, seeds=1)
    assert [[run.seed for run in each.runs] for each in (compared.a, compared.b)] == [[4], [4]]
    assert compared.verdict is not None and compared.verdict.num_pairs == 1
    assert words(compared.verdict.statement) in words(str(compared))
    assert repr(compared).startswith("Compared('recipe', 'recipe': ")


def words(text: str) -> str:
    return " ".join(text.split())


def test_ablation_of_a_dict_has_its_arms_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with kept_log() as log:
        ablated = tune_speed.ablate(
            RECIPE, study="short", axes={"label_smoothing": 0.1}, seeds=1, set={"epochs": 0.5}
        )
    assert [arm.name for arm in ablated.arms] == ["base", "label_smoothing=0.1"]
    assert [arm.n for arm in ablated.arms] == [1, 1]
    assert ablated.path.is_file() and ablated.picture is not None and ablated.picture.is_file()
    assert "label_smoothing=0.1" in str(ablated) and "label_smoothing=0.1" in html(ablated)
    assert repr(ablated) == "Ablated('short-ablation': 2 runs of 2 arms)"
    (warning,) = [record for record in log if record.levelno == logging.WARNING]
    assert "MLflow has not got the runs" in warning.getMessage()


def test_plugin_is_loaded_for_the_call_that_names_it(tmp_path: Path) -> None:
    tree = {**RECIPE, "recipe": {**RECIPE["recipe"], "model": "my_net"}}
    assert "my_net" in problems_of(lambda: tune_speed.train(tree))[0]
    try:
        trained = tune_speed.train(tree, plugins=[write(tmp_path)])
        assert trained.record is not None
        assert list(trained.record.plugins) == ["my_nets.py"]
        assert len(trained.runs) == 1
    finally:
        registry.unload()


# --- What a call may be given


def problems_of(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value).splitlines()


def test_every_mistake_of_a_dict_is_told_by_its_path() -> None:
    wrong = {**SPACE, "optimizer": {"sgd": {"lrr": 0.1}}, "epochs": -1}
    lines = problems_of(lambda: tune_speed.search(wrong, workload=WORKLOAD))
    assert [line.split(": ")[:2] for line in lines] == [
        ["space", "recipe.optimizer.sgd.lrr"],
        ["space", "recipe.optimizer.sgd.lr"],
        ["space", "recipe.epochs"],
    ]


def test_what_is_still_searched_cannot_be_trained() -> None:
    (lr, epochs) = problems_of(lambda: tune_speed.train(SPACE, workload=WORKLOAD))
    assert lr.startswith("recipe: recipe.optimizer.sgd.lr: ")
    assert epochs.startswith("recipe: recipe.epochs: ")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, "recipe.epochs: must be a finite number"),
        (object, "recipe.epochs: must be a dict, a list, text, a number"),
        ({1: 2}, "recipe.epochs: must have keys that are text, but got 1"),
    ],
)
def test_what_no_file_can_hold_is_refused(value: Any, said: str) -> None:
    tree = {**RECIPE, "recipe": {**RECIPE["recipe"], "epochs": value}}
    assert said in "\n".join(problems_of(lambda: tune_speed.train(tree)))


def test_texts_that_look_like_numbers_stay_texts() -> None:
    tree = {**RECIPE, "recipe": {**RECIPE["recipe"], "label_smoothing": "1e-3"}}
    (line,) = problems_of(lambda: tune_speed.train(tree))
    assert line.startswith('recipe: recipe.label_smoothing: must be a number, but got "1e-3"')


def test_numbers_may_be_numpys() -> None:
    tree = {**RECIPE, "recipe": {**RECIPE["recipe"], "epochs": np.int64(2)}}
    file = recipe_from(tree, workload=None, overrides=(), check_data=False)
    assert file.recipe.epochs == 2


@pytest.mark.parametrize(
    "given", ["digits", WORKLOADS["digits"], WORKLOADS["digits"].model_dump(mode="json")]
)
@pytest.mark.parametrize("space", [SPACE, "digits_quickstart"])
def test_workload_may_be_a_name_a_dict_or_an_object(space: Any, given: Any) -> None:
    found = study_from(space, workload=given, overrides=(), check_data=False)
    assert found.workload == WORKLOADS["digits"]


def test_text_of_a_study_is_checked_as_its_file_is() -> None:
    text = load_study("digits_quickstart", check_data=False).text
    parsed = study_of(scan_yaml(text, file="mine.yaml"), check_data=False)
    assert parsed.tree == load_study("digits_quickstart", check_data=False).tree
    number = text.splitlines().index("  precision: fp32") + 1
    wrong = text.replace("  precision: fp32", "  precision: fp33")
    (line,) = problems_of(lambda: study_of(scan_yaml(wrong, file="mine.yaml"), check_data=False))
    assert line.startswith(f"mine.yaml:{number}: recipe.precision: ")


def test_overrides_of_a_dict_are_those_of_the_command_line(tmp_path: Path) -> None:
    given = overrides_of(
        {"epochs": 3, "search.concurrent": "auto", "batch_size": {"choices": [8, 16]}},
        search__trials=7,
    )
    ours = study_from("digits_quickstart", workload=None, overrides=given, check_data=False)
    texts = [
        "epochs=3",
        "search.concurrent=auto",
        "batch_size={choices: [8, 16]}",
        "search.trials=7",
    ]
    theirs = load_study("digits_quickstart", overrides=texts, check_data=False)
    assert ours.tree == theirs.tree
    assert overrides_of(texts) == texts


def test_wrong_override_says_so() -> None:
    (line,) = problems_of(lambda: tune_speed.train(RECIPE, set={"epochss": 3}))
    assert "no field `epochss`" in line and "`epochs`" in line


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tune_speed.train(RECIPE, seeds=0), "seeds must be 1 or more, but got 0"),
        (lambda: tune_speed.certify("tiny", final=-1), "final must be 0 or more, but got -1"),
        (lambda: tune_speed.train(RECIPE, set="epochs=3"), "set must be a dict"),
        (lambda: tune_speed.train(RECIPE, plugins="nets.py"), "plugins must be a list"),
        (lambda: tune_speed.train(RECIPE, plugins=["no_nets.py"]), "no_nets.py"),
        (lambda: tune_speed.search("digits_quickstar"), "Did you mean `digits_quickstart`"),
        (lambda: tune_speed.search([1, 2]), r"must be a file, or the name .* got \[1, 2\]"),
        (lambda: tune_speed.train([1, 2]), r"must be a file, or the name .* got \[1, 2\]"),
    ],
)
def test_wrong_argument_says_what_it_must_be(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()


def test_errors_of_calls_speak_of_keywords_and_not_of_options() -> None:
    space, wanted = "digits_quickstart", {"search.trials": 0}
    (line,) = problems_of(lambda: tune_speed.search(space, trials=0))
    assert line.startswith("trials=0: search.trials: must be greater than 0")
    (line,) = problems_of(lambda: tune_speed.search(space, set=wanted))
    assert line.startswith('set={"search.trials": 0}: search.trials: must be greater than 0')
    lines = problems_of(lambda: tune_speed.train(SPACE, workload=WORKLOAD))
    assert 'Fix it with `set={"epochs": VALUE}`, or run `tune-speed search`.' in lines[1]


def test_errors_of_commands_speak_of_their_options() -> None:
    shown = Progress(shown=True)
    (line,) = problems_of(lambda: tune_speed.search("digits_quickstart", trials=0, progress=shown))
    assert line.startswith("--set search.trials=0: ")


def test_messages_name_keywords_in_a_call_and_options_else() -> None:
    def named() -> list[str]:
        fields = setting("optimizer", "sgd"), setting("lr", 0.1), setting("study", "NAME")
        return [switch("from-mlflow"), option("trials"), *fields]

    keywords = ["from_mlflow=True", "trials=", 'set={"optimizer": "sgd"}', 'set={"lr": 0.1}']
    assert in_python(named)() == [*keywords, "study=NAME"]
    options = ["--from-mlflow", "--trials", "--set optimizer=sgd", "--set lr=0.1"]
    assert named() == [*options, "--set study=NAME"]


def test_a_bounded_call_names_options_as_its_caller_does() -> None:
    assert in_python(lambda: within(9.0, lambda: switch("resume")))() == "resume=True"


@pytest.mark.parametrize("kind", [ServiceError, KeyboardInterrupt])
def test_what_ends_a_call_names_no_lines_of_ours(kind: type[BaseException]) -> None:
    def below(depth: int) -> None:
        if depth == 0:
            raise kind("said") from RuntimeError("inner")
        below(depth - 1)

    with pytest.raises(kind) as caught:
        in_python(below)(20)
    shown = "".join(traceback.format_exception(caught.value))
    assert "in below" not in shown and "inner" not in shown
    assert len(shown.splitlines()) < 10


def test_study_that_mlflow_does_not_have_cannot_be_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(ServiceError, match="no such file yet"):
        tune_speed.certify("tiny")


# --- The package


ONLY_COMMANDS = {"anyway", "as_json", "format_", "plugin", "plugins", "verbose"}
ONLY_CALLS = {"workload", "study", "progress", "plugins", "target"}


@pytest.mark.parametrize("command", [search.search, train.train, search.certify, ablate.ablate])
def test_calls_have_the_options_of_the_commands_and_their_defaults(command: Any) -> None:
    options = inspect.signature(command).parameters
    ours = inspect.signature(getattr(tune_speed, command.__name__)).parameters
    defaults = {
        name.rstrip("_"): each.default
        for name, each in options.items()
        if name not in ONLY_COMMANDS
    }
    assert defaults.keys() <= ours.keys()
    assert {name: ours[name].default for name in defaults} == defaults
    assert ours.keys() - defaults.keys() <= ONLY_CALLS


@pytest.mark.parametrize("name", ["search", "train", "certify", "ablate"])
def test_a_call_is_a_plain_function_and_no_module_has_its_name(name: str) -> None:
    assert inspect.isfunction(getattr(tune_speed, name))
    assert importlib.util.find_spec(f"tune_speed.{name}") is None


def test_importing_the_package_imports_nothing_that_takes_long() -> None:
    added = printed_by(
        "import sys; before = set(sys.modules); import tune_speed\n"
        "print(*{name.split('.')[0] for name in sys.modules.keys() - before})"
    )
    assert {*added.split()} <= {"tune_speed", "typing"} | set(sys.stdlib_module_names)
    heavy = ("torch", "ray", "pandas", "mlflow")
    assert imported("from tune_speed import search", *heavy) == set()


def test_a_search_reads_its_study_before_torch_is_imported() -> None:
    """Torch takes a second, in which Ray can start already."""
    assert imported("import tune_speed.api.study, tune_speed.api.inputs", "torch") == set()


def test_every_export_is_there() -> None:
    assert [name for name in tune_speed.__all__ if not hasattr(tune_speed, name)] == []
    assert set(tune_speed.__all__) <= set(dir(tune_speed))
    with pytest.raises(AttributeError, match="no attribute 'serch'"):
        tune_speed.serch  # noqa: B018


def test_functions_that_use_the_package_can_be_sent_to_other_processes() -> None:
    send, receive = cloudpickle.dumps, cloudpickle.loads
    assert receive(send(lambda: tune_speed.__version__))() == tune_speed.__version__
    assert receive(send(tune_speed.train)) is tune_speed.train


def test_type_marker_is_shipped() -> None:
    assert resources.files("tune_speed").joinpath("py.typed").is_file()
    pyproject = Path(tune_speed.__file__).parents[1] / "pyproject.toml"
    assert '"tune_speed" = ["py.typed"]' in pyproject.read_text()


# --- What strangers wrote


HOSTILE = "<script>alert(1)</script>\x1b[31m"


def html(shown: Any) -> str:
    text = shown._repr_html_()
    assert "<script" not in text
    return str(text)


def test_names_are_escaped_in_html_and_obeyed_by_no_terminal() -> None:
    record = make_record().model_copy(update={"study": HOSTILE, "params": {"lr": HOSTILE}})
    result = SearchResult(
        records=(record,),
        boards=tuple(make_boards([(None, record)])),
        folder=Path(HOSTILE),
        store=Store("sqlite:////tmp/mlflow.db"),
        undelivered=(),
        was_stopped=False,
        model_line="",
    )
    study = tune_speed.Study(name=HOSTILE, result=result)
    assert "&lt;script&gt;" in html(study)
    for text in (html(study), str(study), repr(study), str(boards_html(study.boards))):
        assert "\x1b" not in text


def test_outcomes_of_what_was_stopped_at_once_say_so() -> None:
    stopped = CertifyResult((), (), (), (), Path("s"), (), True)
    certified = tune_speed.Certified(study="s", result=stopped)
    trained = tune_speed.Trained(name="s", record=None, was_stopped=True)
    assert repr(certified) == "Certified('s': stopped)" and certified.best is None
    assert repr(trained) == "Trained('s': 0 of 0 runs met the target, stopped)"
    for shown in (certified, trained):
        assert "stopped" in str(shown) and "stopped" in html(shown)


def test_no_password_of_a_store_is_shown() -> None:
    result = SearchResult((), (), Path("s"), Store("postgresql://me:hush@host/db"), (), False, "")
    study = tune_speed.Study(name="s", result=result._replace(why_ended="settled"))
    assert study.why_ended == study.as_dict()["why_ended"] == "settled"
    assert study.uri == "postgresql://me:***@host/db"
    assert "hush" not in repr(study) + str(study) + html(study)
    assert (study.best, study.recipe, study.recipe_yaml) == (None, None, None)


def test_progress_is_shown_by_default_where_somebody_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(sys, "ps1", raising=False)
    assert [is_shown(each) for each in (None, False, True)] == [False, False, True]
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert [is_shown(each) for each in (None, False, True)] == [True, False, True]


def test_progress_is_shown_on_stderr_or_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with kept_log() as log:
        Progress(shown=True).line("[bold]first\x1b[31m")
        Progress(shown=False).line("[bold]second")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "[bold]first\N{REPLACEMENT CHARACTER}[31m\n")
    assert [record.getMessage() for record in log] == ["[bold]second"]
