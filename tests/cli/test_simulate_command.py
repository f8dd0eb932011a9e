"""`tune-speed simulate`, in this process where that is enough."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command import Done, start
from helpers.imports import imported_by_command
from helpers.making import make_evaluation, make_record, make_run

from tune_speed.core.records import Status, TrialRecord
from tune_speed.tracking import Store, Tracker
from tune_speed.tuning.simulation import benchmarks
from tune_speed.tuning.simulation.recorded import RecordedBenchmark
from tune_speed.tuning.simulation.simulate import new_policy, run_policy

EASY = "synthetic-15-fixed_length"
PNG = b"\x89PNG\r\n\x1a\n"


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(call: Callable[..., Done], tmp_path: Path) -> Command:
    return lambda *arguments: call("simulate", *arguments, folder=tmp_path)


def trials(number: int) -> list[TrialRecord]:
    """Trials of one, two, three … seconds, of which each second one misses."""
    made = []
    for index in range(number):
        status = Status.MISSED if index % 2 else Status.REACHED
        accuracy = 0.8 if index % 2 else 0.95
        evaluations = tuple(
            make_evaluation(step=step, train_s=(index + 1) * step / 2, accuracy=accuracy * step / 2)
            for step in (0, 1, 2)
        )
        run = make_run(status, time_s=float(index + 1)).model_copy(
            update={"evaluations": evaluations}
        )
        params = {"optimizer.sgd.lr": 0.01 * 1.5**index}
        made.append(make_record(f"t{index:04d}", status, study="mine", params=params, runs=(run,)))
    return made


def test_one_search_prints_its_bests_and_its_trials_with_reasons(command: Command) -> None:
    code, out, _ = command("--benchmark", EASY, "--policy", "random", "--budget", "5")
    assert code == 0
    assert "each new best" in out and "time_to_target_s" in out
    assert "the sampler's proposal" in out
    assert re.search(r"^\d+ trials: \d+ missed", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 100


def test_json_of_one_search_is_the_whole_trace(command: Command) -> None:
    _, out, _ = command("--benchmark", EASY, "--policy", "random", "--budget", "2", "--json")
    benchmark = benchmarks.SYNTHETIC[EASY]
    budget_s = 2 * benchmark.full_run_s / 4
    trace = run_policy(
        new_policy("random", benchmark, 0), benchmark, num_workers=4, budget_s=budget_s
    )
    printed = json.loads(out)
    assert [trial["trial_id"] for trial in printed["trials"]] == [t.trial_id for t in trace.trials]
    assert [i["time_to_target_s"] for i in printed["incumbents"]] == [
        i.time_to_target_s for i in trace.incumbents
    ]


def test_start_up_time_leaves_less_for_trials(command: Command) -> None:
    def num_trials(*more: str) -> int:
        arguments = ("--benchmark", EASY, "--policy", "random", "--budget", "2", "--json", *more)
        return len(json.loads(command(*arguments)[1])["trials"])

    assert num_trials("--overhead-s", "30") < num_trials()
    assert num_trials("--workers", "1") > 0


def test_search_that_finds_nothing_ends_with_code_1(command: Command) -> None:
    code, out, _ = command("--benchmark", EASY, "--policy", "random", "--budget", "0.01")
    assert code == 1
    assert "No trial met the target." in out


@pytest.mark.slow
def test_comparison_fits_100_columns_and_draws(command: Command, tmp_path: Path) -> None:
    some = ("--benchmark", EASY, "--benchmark", "synthetic-15%-anytime", "--policy", "random")
    more = ("--policy", "vanilla", "--budget", "3,1", "--seeds", "2", "--jobs", "1")
    code, out, err = command("--compare", *some, *more)
    assert code == 0
    assert out.count("1 full runs' worth") == 2 and out.count("3 full runs' worth") == 2
    assert max(map(len, out.splitlines())) <= 100
    assert err.count("seed 1: ") == 4 and "[8/8]" in err
    assert (tmp_path / "policy_comparison.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_comparison_with_vanilla_has_ratios_with_intervals(command: Command) -> None:
    some = ("--policy", "vanilla", "--policy", "random", "--plot", "plots/a.svg")
    more = ("--benchmark", EASY, "--budget", "2", "--seeds", "2", "--jobs", "2")
    _, out, _ = command("--compare", *some, *more, "--json")
    printed = json.loads(out)
    (row,) = printed["overall"]
    assert row["policy"] == "random"
    assert row["best_ratio"]["low"] <= row["best_ratio"]["value"] <= row["best_ratio"]["high"]
    assert len(printed["searches"]) == 4
    assert "<svg" in Path("plots/a.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "vanila"], "did you mean `vanilla`?"),
        (["--compare", "--policy", "time_to_targt"], "did you mean `time_to_target`?"),
        (["--benchmark", "synthetic-4-any"], "did you mean `synthetic-4-anytime`?"),
        (["--benchmark", "none.parquet"], "none.parquet must be a recorded benchmark"),
        (["--compare", "--benchmark", EASY, "--benchmark", EASY], "Leave one out."),
        (["--budget", "many"], "--budget must be positive numbers"),
        (["--compare", "--budget", "20,-1"], "--budget must be positive numbers"),
        (["--seeds", "3", "--plot", "a.png"], "--seeds, --plot must go with --compare"),
        (["--policy", "random", "--policy", "vanilla"], "need --compare"),
        (["--compare", "--plot", "a.txt"], "--plot must be a file that ends in .png"),
        (["--from-study", "mine"], "must be given together"),
        (["--out", "a.parquet"], "must be given together"),
    ],
)
def test_wrong_options_are_refused_in_words(
    arguments: list[str], says: str, command: Command
) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert says in err


def test_study_becomes_a_benchmark(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    tracker = Tracker(Store(uri), study="mine", study_tags={}, linger_s=0.02)
    for record in [*trials(8), make_record("t0008", Status.FAILED, study="mine")]:
        tracker.trial_finished(record=record)
    assert tracker.close(timeout_s=30) == ()
    code, out, _ = command("--from-study", "mine", "--out", "mine.parquet")
    assert code == 0, out
    assert "8 runs; search space: what its trials span" in out
    assert "left out: 1 trial, failed" in out
    benchmark = RecordedBenchmark.load("mine.parquet")
    assert [benchmark.curve(r.params).end_s for r in trials(8)] == list(range(1, 9))
    assert command("--benchmark", "mine.parquet", "--policy", "random")[0] == 0
    assert command("--from-study", "yours", "--out", "b.parquet")[0] == 2


@pytest.mark.slow
def test_ctrl_c_shows_what_is_done(tmp_path: Path) -> None:
    some = ("--policy", "random", "--benchmark", EASY, "--budget", "50", "--seeds", "5000")
    process = start("simulate", "--compare", *some, "--jobs", "2", folder=tmp_path)
    assert process.stderr is not None
    while "[3/" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "50 full runs' worth" in out
    assert "searches that were done" in err and "Traceback" not in err


def test_help_imports_neither_matplotlib_nor_optuna() -> None:
    heavy = ("matplotlib", "optuna", "pyarrow", "numpy")
    assert imported_by_command("simulate", "--help", names=heavy) == set()
