import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.experiments.ablations import AXES, Trainer, ablate, make_broken, make_epoch, make_plan

from tune_speed.core.errors import ConfigError, DataError, StorageError
from tune_speed.core.records import RunResult, Status
from tune_speed.experiments.ablation import ablate as runner
from tune_speed.experiments.ablation.ablate import TUNING_SEEDS, Ablation, run_ablation, save_result
from tune_speed.experiments.ablation.plan import AblationPlan
from tune_speed.experiments.ablation.result import AblationResult
from tune_speed.study.file import RecipeFile
from tune_speed.training import objective
from tune_speed.training.build import Job

BASE, PAIR, SMOOTH = (1, 0.0), (2, 0.0), (1, 0.1)
Use = Callable[[Trainer], Trainer]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    def put(trainer: Trainer) -> Trainer:
        monkeypatch.setattr(runner, "train_once", trainer)
        return trainer

    return put


def ledger_lines(folder: Path, name: str = "ablation-1") -> list[dict[str, Any]]:
    path = folder / "tiny" / "ablation" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- Order


def test_every_arm_runs_once_with_each_seed_and_seeds_are_blocks(tmp_path: Path, use: Use) -> None:
    trainer = use(Trainer())
    ablate(make_plan(tmp_path, "ablate.seeds=4"), tmp_path)
    blocks = [trainer.settings()[i : i + 3] for i in range(0, 12, 3)]
    assert [{seed for *_, seed in block} for block in blocks] == [{4}, {5}, {6}, {7}]
    assert all({(a, b) for a, b, _ in block} == {BASE, PAIR, SMOOTH} for block in blocks)
    # Williams: 0, 1, 2 and shifted by one, each of them also backwards.
    first, second, third, fourth = ([(a, b) for a, b, _ in block] for block in blocks)
    assert first == [BASE, PAIR, SMOOTH]
    assert third == [PAIR, SMOOTH, BASE]
    assert (second, fourth) == (first[::-1], third[::-1])


def test_records_are_trials_of_one_study_with_what_the_arm_sets(tmp_path: Path, use: Use) -> None:
    use(Trainer())
    done = ablate(make_plan(tmp_path), tmp_path)
    assert {record.study for record in done.records} == {"tiny-ablation"}
    assert len({record.trial_id for record in done.records}) == 6
    by_reason = {str(record.proposal_reason): record.params for record in done.records}
    assert by_reason["arm base, seed 4"] == {}
    assert by_reason["arm accumulation_steps=2, seed 5"] == {"accumulation_steps": 2}


# --- Going on


@pytest.mark.parametrize("stop_at", [0, 1, 4])
def test_stopped_ablation_keeps_what_is_done_and_goes_on(
    tmp_path: Path, use: Use, stop_at: int
) -> None:
    plan = make_plan(tmp_path)
    trainer = use(Trainer(stop_at=stop_at))
    stopped = ablate(plan, tmp_path)
    assert (stopped.was_stopped, stopped.result.done_runs) == (True, stop_at)
    assert len(stopped.records) == stop_at
    rest = use(Trainer())
    done = ablate(plan, tmp_path)
    assert (done.was_stopped, done.result.done_runs) == (False, 6)
    use(whole := Trainer())
    other = ablate(plan, tmp_path / "other")
    assert trainer.settings() + rest.settings() == whole.settings()
    assert other.result == done.result
    nothing = use(Trainer())
    assert ablate(plan, tmp_path) == done
    assert nothing.calls == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ablate.seeds": 3}, "seeds = 2, now 3"),
        ({"ablate.design": "factorial"}, "design = one-at-a-time, now factorial"),
        ({"run.seed": 5}, "first seed = 4, now 5"),
        ({"epochs": 2}, "recipe.epochs = 1.0, now 2.0"),
        ({"workload.target.value": 0.4}, "workload.target.value = 0.3, now 0.4"),
        ({"ablate.retune": "lr"}, "retune = None, now lr"),
        ({"run.cpu_threads": 2}, "run.cpu_threads = 1, now 2"),
        ({"ablate.axes": {**AXES, "label_smoothing": 0.2}}, "arms label_smoothing=0.1, label_s"),
    ],
)
def test_other_options_are_refused_by_name(
    tmp_path: Path, use: Use, changes: dict[str, Any], told: str
) -> None:
    trainer = use(Trainer())
    ablate(make_plan(tmp_path), tmp_path)
    other = make_plan(tmp_path, *(f"{path}={json.dumps(value)}" for path, value in changes.items()))
    with pytest.raises(ConfigError) as refused:
        ablate(other, tmp_path)
    assert f"must go on as it began, but differs: {told}" in str(refused.value) or (
        f"; {told}" in str(refused.value)
    )
    assert "--again" in str(refused.value)
    assert len(trainer.calls) == 6
    assert ablate(other, tmp_path, again=True).result.study == "tiny-ablation-2"


def test_again_begins_a_ledger_and_a_study_of_its_own(tmp_path: Path, use: Use) -> None:
    trainer = use(Trainer())
    plan = make_plan(tmp_path)
    first = ablate(plan, tmp_path)
    second = ablate(plan, tmp_path, again=True)
    third = ablate(plan, tmp_path)
    assert len(trainer.calls) == 12
    assert first.result.study == "tiny-ablation"
    assert second.result.study == third.result.study == "tiny-ablation-2"
    assert {record.study for record in third.records} == {"tiny-ablation-2"}
    files = sorted(path.name for path in first.folder.parent.iterdir())
    assert files == ["ablation-1.jsonl", "ablation-2.jsonl"]


def test_parts_have_ledgers_studies_and_figures_of_their_own(tmp_path: Path, use: Use) -> None:
    use(Trainer())
    plan = make_plan(tmp_path)
    done = [ablate(plan, tmp_path, part=part) for part in ("v1.5", "v1.6")]
    assert [one.result.study for one in done] == ["tiny-v1.5-ablation", "tiny-v1.6-ablation"]
    assert [save_result(one).name for one in done] == ["v1.5-1.json", "v1.6-1.json"]
    assert AblationResult.model_validate_json(save_result(done[1]).read_text()) == done[1].result


def test_figures_that_cannot_be_written_say_so(tmp_path: Path, use: Use) -> None:
    use(Trainer())
    done = ablate(make_plan(tmp_path), tmp_path)
    done.folder.with_suffix(".json").mkdir()
    with pytest.raises(StorageError, match=r"ablation-1\.json cannot be written"):
        save_result(done)


def test_threads_that_a_training_left_to_the_process_change_nothing(
    tmp_path: Path, use: Use
) -> None:
    use(Trainer())
    plan, threads = make_plan(tmp_path), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        ablate(plan, tmp_path)
        torch.set_num_threads(2)
        assert ablate(plan, tmp_path).result.done_runs == 6
    finally:
        torch.set_num_threads(threads)


def test_run_that_a_kill_cut_short_runs_again(tmp_path: Path, use: Use) -> None:
    use(Trainer())
    plan = make_plan(tmp_path)
    done = ablate(plan, tmp_path)
    path = done.folder.with_suffix(".jsonl")
    path.write_bytes(path.read_bytes()[:-50])
    trainer = use(Trainer())
    assert ablate(plan, tmp_path).result == done.result
    assert trainer.settings() == [(*BASE, 5)]


# --- What goes wrong


def raising(error: Exception) -> Callable[..., Any]:
    real = objective.train

    def train(job: Job, **options: Any) -> Any:
        if job.recipe.label_smoothing:
            raise error
        return real(job, **options)

    return train


def test_arm_that_raises_is_a_failure_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objective, "train", raising(ZeroDivisionError("boom")))
    axes = {"label_smoothing": 0.1}
    done = ablate(make_plan(tmp_path, "epochs=0.1", axes=axes), tmp_path)
    base, broken = done.result.arms
    assert (base.n, broken.n, broken.statuses) == (2, 2, {Status.FAILED: 2})
    assert (broken.hits, broken.accuracy.n, broken.speed_up) == (0, 0, None)
    assert "boom" in broken.stop_reasons[0]
    failed = [record for record in done.records if record.status is Status.FAILED]
    assert len(failed) == 2
    assert all("ZeroDivisionError: boom" in str(record.runs[0].traceback) for record in failed)
    assert ablate(make_plan(tmp_path, "epochs=0.1", axes=axes), tmp_path) == done


@pytest.mark.slow
def test_arm_out_of_memory_is_so_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objective, "train", raising(torch.OutOfMemoryError("too many")))
    done = ablate(make_plan(tmp_path, "epochs=0.1", "ablate.seeds=1"), tmp_path)
    assert [set(arm.statuses) for arm in done.result.arms][2] == {Status.OOM}
    assert [arm.accuracy.n for arm in done.result.arms] == [1, 1, 0]
    assert "down to a micro-batch of 1" in done.result.arms[2].stop_reasons[0]


def test_missing_data_end_it_and_what_is_done_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Use
) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise DataError("the data are gone")

    plan = make_plan(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "train_once", Trainer(stop_at=1))
        ablate(plan, tmp_path)
    with monkeypatch.context() as patch, pytest.raises(DataError, match="gone") as ended:
        patch.setattr(objective, "train", gone)
        ablate(plan, tmp_path)
    assert ended.value.exit_code == 3
    rest = use(Trainer())
    assert ablate(plan, tmp_path).result.done_runs == 6
    assert len(rest.calls) == 5


def test_not_applicable_is_a_row_without_runs(tmp_path: Path, use: Use) -> None:
    trainer = use(Trainer())
    axes = {"accumulation_steps": 2, "precision": "fp16", "loader.pin_memory": True}
    plan = make_plan(tmp_path, "ablate.design=factorial", axes=axes)
    result = ablate(plan, tmp_path).result
    assert len(trainer.calls) == result.planned_runs == result.done_runs == 4
    assert [arm.name for arm in result.arms] == [
        "base", "accumulation_steps=2", "precision=fp16", "loader.pin_memory=true",
    ]  # fmt: skip
    for arm in result.arms[2:]:
        assert arm.not_applicable and arm.n == 0
        assert (arm.speed_up, arm.accuracy_gain, arm.time_to_target_factor) == (None, None, None)
    assert {effect.name for effect in result.effects} == {"accumulation_steps=2"}


def test_base_alone_runs_where_nothing_is_applicable(tmp_path: Path, use: Use) -> None:
    trainer = use(Trainer())
    result = ablate(make_plan(tmp_path, axes={"precision": "fp16"}), tmp_path).result
    assert len(trainer.calls) == result.done_runs == 2
    assert (len(result.arms), result.effects) == (2, ())


# --- Re-tuning


def by_rate(*, best: dict[float, float]) -> Callable[[RecipeFile, int], RunResult]:
    """Returns a training whose accuracy falls with the distance of ln(rate) from the best one's.

    `best` has the best rate by label smoothing.
    """

    def train(file: RecipeFile, seed: int) -> RunResult:
        ratio = file.recipe.optimizer.lr / best[file.recipe.label_smoothing]
        return make_epoch(seed, accuracy=0.9 - 0.05 * abs(math.log(ratio)))

    return train


def rates(trainer: Trainer, *, smoothing: float = 0.0, tuning: bool) -> list[float]:
    return [
        file.recipe.optimizer.lr
        for file, seed in trainer.calls
        if file.recipe.label_smoothing == smoothing and (seed >= TUNING_SEEDS) == tuning
    ]


def make_tuned(folder: Path, *overrides: str, **given: Any) -> AblationPlan:
    given = {"axes": {"label_smoothing": 0.1}, **given}
    return make_plan(folder, "ablate.retune=lr", *overrides, **given)


def factors(done: Ablation) -> list[float | None]:
    return [arm.lr_factor for arm in done.result.arms]


def test_each_arm_has_its_own_best_rate_and_other_seeds_than_it_was_chosen_by(
    tmp_path: Path, use: Use
) -> None:
    trainer = use(Trainer(by_rate(best={0.0: 0.1, 0.1: 0.3})))
    done = ablate(make_tuned(tmp_path), tmp_path)
    assert factors(done) == [1.0, 3.0]
    assert rates(trainer, tuning=True) == [0.03, 0.1, 0.3]
    assert rates(trainer, smoothing=0.1, tuning=True) == [0.03, 0.1, 0.3, 0.9]
    assert set(rates(trainer, tuning=False)) == {0.1}
    assert set(rates(trainer, smoothing=0.1, tuning=False)) == {0.3}
    seeds = [seed for _, seed in trainer.calls]
    assert seeds == [4 + TUNING_SEEDS] * 7 + [4, 4, 5, 5]
    assert len(done.records) == 11 and len({record.trial_id for record in done.records}) == 11


def test_at_most_two_factors_are_added_beyond_an_edge(tmp_path: Path, use: Use) -> None:
    trainer = use(Trainer(by_rate(best={0.0: 1e-9, 0.1: 1e9})))
    done = ablate(make_tuned(tmp_path), tmp_path)
    assert factors(done) == [0.027, 27.0]
    assert sorted(rates(trainer, tuning=True)) == [0.0027, 0.009, 0.03, 0.1, 0.3]
    assert sorted(rates(trainer, smoothing=0.1, tuning=True)) == [0.03, 0.1, 0.3, 0.9, 2.7]
    assert all(arm.is_lr_at_edge for arm in done.result.arms)


def test_diverged_rates_lose_and_where_all_are_alike_the_base_s_own_stays(
    tmp_path: Path, use: Use
) -> None:
    def diverges_above(file: RecipeFile, seed: int) -> RunResult:
        is_too_fast = file.recipe.label_smoothing and file.recipe.optimizer.lr > 0.05
        return make_broken(seed, Status.DIVERGED) if is_too_fast else make_epoch(seed)

    use(Trainer(diverges_above))
    result = ablate(make_tuned(tmp_path), tmp_path).result
    assert [arm.lr_factor for arm in result.arms] == [1.0, 0.3]
    lost = [point for point in result.arms[1].tuning if point.metric is None]
    assert {point.factor for point in lost} == {1.0, 3.0}
    assert result.arms[1].statuses == {Status.REACHED: 2}


def test_rate_of_an_arm_that_changes_the_optimizer_is_its_own_times_the_factor(
    tmp_path: Path, use: Use
) -> None:
    def best_at_2(file: RecipeFile, seed: int) -> RunResult:
        ratio = math.log(file.recipe.optimizer.lr / 0.002)
        return make_epoch(seed, accuracy=0.9 - 0.02 * abs(ratio))

    axes = {
        "rate": {"slow": {"optimizer.lr": 0.01}},
        "optimizer": {"adamw": {"optimizer": {"adamw": {"lr": 0.002}}}},
    }
    trainer = use(Trainer(best_at_2))
    plan = make_tuned(tmp_path, "ablate.design=cumulative", axes=axes)
    done = ablate(plan, tmp_path)
    assert [arm.name for arm in done.result.arms] == ["base", "slow", "slow + adamw"]
    tried = [
        file.recipe.optimizer.lr
        for file, seed in trainer.calls
        if type(file.recipe.optimizer).__name__ == "AdamW" and seed >= TUNING_SEEDS
    ]
    assert sorted(tried) == [0.0006, 0.002, 0.006]
    assert factors(done)[2] == 1.0


def test_soonest_rate_is_chosen_where_runs_end_at_the_target(tmp_path: Path, use: Use) -> None:
    def sooner_if_faster(file: RecipeFile, seed: int) -> RunResult:
        rate = file.recipe.optimizer.lr
        if rate > 0.5:
            return make_broken(seed, Status.MISSED)
        return make_epoch(seed, epoch_s=0.1 / rate, accuracy=0.95 - rate / 10)

    use(Trainer(sooner_if_faster))
    anytime = make_tuned(tmp_path, "workload.mode=anytime")
    assert factors(ablate(anytime, tmp_path / "anytime")) == [3.0, 3.0]
    assert factors(ablate(make_tuned(tmp_path), tmp_path / "fixed"))[0] != 3.0


def test_retuning_that_was_stopped_goes_on_with_each_factor_s_missing_seeds(
    tmp_path: Path, use: Use
) -> None:
    plan = make_tuned(tmp_path, "ablate.retune_seeds=2")
    outcome = by_rate(best={0.0: 0.3, 0.1: 0.3})
    whole = use(Trainer(outcome))
    expected = ablate(plan, tmp_path / "whole").result
    for stop_at in (0, 7, 12, 13, 15, 18):
        folder = tmp_path / str(stop_at)
        begun = use(Trainer(outcome, stop_at=stop_at))
        assert ablate(plan, folder).was_stopped
        rest = use(Trainer(outcome))
        assert ablate(plan, folder).result == expected
        assert begun.settings() + rest.settings() == whole.settings()


@pytest.mark.parametrize("name", ["typo", "optimizer.nesterov", "clip_norm"])
def test_what_cannot_be_retuned_is_refused_before_any_run(
    tmp_path: Path, use: Use, name: str
) -> None:
    trainer = use(Trainer())
    with pytest.raises(ConfigError, match="`retune` must name a number of every arm's recipe"):
        ablate(make_plan(tmp_path, f"ablate.retune={name}"), tmp_path)
    assert trainer.calls == []
    assert not (tmp_path / "tiny").exists()


def test_factor_that_gives_no_recipe_is_refused_before_any_run(tmp_path: Path, use: Use) -> None:
    trainer = use(Trainer())
    with pytest.raises(ConfigError, match=r"optimizer\.momentum"):
        ablate(make_plan(tmp_path, "ablate.retune=optimizer.momentum"), tmp_path)
    assert trainer.calls == []


def test_factor_beyond_the_edge_that_gives_no_recipe_is_left_out(tmp_path: Path, use: Use) -> None:
    def better_if_larger(file: RecipeFile, seed: int) -> RunResult:
        return make_epoch(seed, accuracy=0.5 + file.recipe.optimizer.momentum / 2)

    use(Trainer(better_if_larger))
    overrides = ("ablate.retune=optimizer.momentum", "optimizer.momentum=0.3")
    done = ablate(make_plan(tmp_path, *overrides), tmp_path)
    assert factors(done) == [3.0, 3.0, 3.0]


def test_progress_says_what_comes_what_was_and_what_is_left(tmp_path: Path, use: Use) -> None:
    use(Trainer())
    lines: list[str] = []
    plan = make_tuned(tmp_path, axes={"label_smoothing": 0.1, "precision": "fp16"})
    run_ablation(
        plan,
        folder=tmp_path,
        download=False,
        on_progress=lambda done, total: None,
        on_line=lines.append,
    )
    assert lines[0].startswith("precision=fp16 is not applicable here: ")
    assert lines[1] == "tiny-ablation: one-at-a-time, 2 arms × 2 seeds, in turns"
    assert "re-tuned lr: base ×1, label_smoothing=0.1 ×1" in lines
    assert lines[-1] == "seed 5, base: reached, train_s 1.00, accuracy 0.9500  (the last)"
    assert [line.rpartition("(")[2] for line in lines[-4:-1]] == [
        "3 to go)",
        "2 to go)",
        "1 to go)",
    ]
