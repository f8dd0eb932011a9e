import os
import stat

import pytest

from tune_speed.components.metrics import target_metrics
from tune_speed.core.errors import ConfigError, DataError
from tune_speed.data import DATASETS
from tune_speed.study.file import load_recipe, load_study, parse_recipe
from tune_speed.study.yaml import dump_yaml, parse_yaml
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import WORKLOADS

GOOD = """\
study: tiny
workload: digits
recipe:
  model: {resnet20: {}}
  optimizer:
    choices:
      sgd: {lr: {low: 1e-2, high: 1.0, log: true}}
      adamw: {lr: 1e-3}
  epochs: {low: 1, high: 4}
  batch_size: 64
search: {trials: 4, time_budget: 1m30s, resources: {cpu: 0.5}}
certify: {top: 2, seeds: 3}
"""


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="file.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_file


def problems_of(path, *, overrides=(), load=load_study):
    with pytest.raises(ConfigError) as caught:
        load(path, overrides=overrides)
    return caught.value.problems


def changed(old, new):
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


@pytest.mark.parametrize("share", [0.0, 0.15, 0.99])
def test_share_that_a_search_holds_back_is_any_below_one(write, share):
    path = write(changed("trials: 4", f"hold_back: {share}"))
    assert load_study(path).search.hold_back == share
    assert load_study(write(GOOD)).search.hold_back == 0.15


def test_file_that_is_not_there_is_told_with_the_nearest_beside_it(write, tmp_path):
    write(GOOD, "my_study.yaml")
    (problem,) = problems_of(tmp_path / "my_studdy.yaml")
    assert problem.hint == "Did you mean `my_study.yaml`?"
    (problem,) = problems_of(tmp_path / "digits_quickstrt")
    assert problem.hint == "Did you mean `digits_quickstart`?"


def test_unknown_field_is_told_with_the_nearest_or_with_where_all_are(write):
    (problem,) = problems_of(write(changed("trials: 4", "triels: 4")))
    assert (problem.must, problem.hint) == ("no field `triels`", "Did you mean `trials`?")
    (problem,) = problems_of(write(changed("trials: 4", "zzz: 4")))
    assert problem.must == "no field `zzz`; `tune-speed schema` describes those there are"


def test_missing_data_alone_are_no_mistake_of_the_file(write, tmp_path):
    data = {"name": "image_folder", "root": str(tmp_path / "gone"), "image_size": 8}
    text = changed("workload: digits", f"workload: {{dataset: {data}, target: {{value: 0.9}}}}")
    with pytest.raises(DataError, match=r"file\.yaml:2: workload\.dataset: .*gone"):
        load_study(write(text))
    problems = problems_of(write(text.replace("trials: 4", "trials: 0")))
    assert [problem.path for problem in problems] == ["workload.dataset", "search.trials"]


def test_study_file_is_read(write):
    path = write(GOOD)
    study = load_study(path)
    assert (study.name, study.file, study.text) == ("tiny", str(path), GOOD)
    assert study.workload == WORKLOADS["digits"]
    assert [p.name for p in study.space.parameters] == ["optimizer", "optimizer.sgd.lr", "epochs"]
    assert (study.search.trials, study.search.time_budget_s) == (4, 90.0)
    assert study.search.resources.cpu == 0.5
    assert study.certify is not None and study.certify.seeds == 3
    assert study.run is None


def test_every_point_of_a_study_is_a_recipe(write):
    space = load_study(write(GOOD)).space
    for params in space.corners():
        Recipe.model_validate(space.build(params))


def test_name_is_the_files_without_a_name_inside(write):
    assert load_study(write(changed("study: tiny\n", ""), "my-study.v2.yaml")).name == "my-study.v2"
    (problem,) = problems_of(write(changed("study: tiny\n", ""), "my study.yaml"))
    assert "a file's name must match" in str(problem)


def test_sections_may_be_left_out_or_empty(write):
    text = GOOD.partition("search:")[0] + "search:\nrun:\n"
    study = load_study(write(text))
    assert (study.search.trials, study.search.concurrent) == (50, 2)
    assert (study.certify, study.run) == (None, None)
    assert study.tracking.log_model == "none"


FIVE_MISTAKES = """\
study: five
workload:
  dataset: {name: digits}
  target: {metric: acuracy, value: 0.9}
recipe:
  model: {resnet20: {}}
  optimizer:
    sgd:
      lrr: 0.1
      lr: "1e-3"
  epochs: {low: 9, high: 3}
  batch_size:
    choices: [64, 100000]
"""


def test_five_mistakes_are_reported_in_one_go(write):
    problems = problems_of(write(FIVE_MISTAKES))
    assert [(p.line, p.path) for p in problems] == [
        (4, "workload.target.metric"),
        (9, "recipe.optimizer.sgd.lrr"),
        (10, "recipe.optimizer.sgd.lr"),
        (11, "recipe.epochs.low"),
        (13, "recipe.batch_size"),
    ]
    texts = [str(problem) for problem in problems]
    metrics = ", ".join(target_metrics())
    assert f'must be one of {metrics}, but got "acuracy"' in texts[0]
    assert "Did you mean `lr`?" in texts[1]
    assert 'must be a number, but got "1e-3". Remove the quotes.' in texts[2]
    assert "`low` must be at most `high`, but got low 9, high 3" in texts[3]
    # 1,797 images, 359 for the test part, and 144 of the others for validation.
    assert "must be at most 1294, the size of the training part, but got 100000" in texts[4]


# Old text in GOOD, new text: line, path, and words of the only problem.
WRONG = {
    ("study: tiny", "study: ../x"): (1, "study", "must match pattern"),
    ("study: tiny", "study: {choices: [a]}"): (1, "study", "must be one value"),
    ("workload: digits", "workload: digit"): (2, "workload", "Did you mean `digits`?"),
    ("workload: digits", "workload: []"): (2, "workload", "must be a mapping of fields"),
    ("workload: digits\n", ""): (1, "workload", "must be given. What must be reached."),
    ("search:", "serch:"): (11, "serch", "no field `serch`. Did you mean `search`?"),
    ("trials: 4", "trials: 0"): (11, "search.trials", "must be greater than 0, but got 0"),
    ("trials: 4", "trials: {low: 1, high: 2}"): (11, "search.trials", "only the recipe is"),
    ("trials: 4", "hold_back: 1"): (11, "search.hold_back", "must be less than 1, but got 1"),
    ("trials: 4", "hold_back: -0.1"): (11, "search.hold_back", "must be greater than or equal to"),
    ("trials: 4", "until: {probability_of_better: 1.5}"): (
        11,
        "search.until.probability_of_better",
        "must be less than 1, but got 1.5",
    ),
    ("trials: 4", "policy: random, until: {probability_of_better: 0.1}"): (
        11,
        "search.until",
        "does not know what it may still find",
    ),
    ("1m30s,", "1m30s, longest_pause: 1s,"): (11, "search.longest_pause", "must be at least 2s,"),
    ("1m30s", "soon"): (11, "search.time_budget", "must be a duration above 0, such as `90s`"),
    ("trials: 4", "sampler: tpa"): (11, "search.sampler", "Did you mean `tpe`?"),
    ("trials: 4", "policy: vanila"): (11, "search.policy", "Did you mean `vanilla`?"),
    ("trials: 4", "policy: vanilla, sampler: tpe"): (11, "search.sampler", "must be left out with"),
    ("trials: 4", "policy: random, warm_start: [other]"): (11, "search.warm_start", "must be left"),
    ("trials: 4", "points_to_evaluate: [{epochs: 9}]"): (
        11,
        "search.points_to_evaluate.epochs",
        "must be from 1 to 4, but got 9",
    ),
    ("trials: 4", "points_to_evaluate: [{epoch: 2}]"): (
        11,
        "search.points_to_evaluate.epoch",
        "Did you mean `epochs`?",
    ),
    ("trials: 4", "warm_start: other"): (11, "search.warm_start", "list"),
    ("trials: 4", "storage: 'postgres://me:s3cret@host/db'"): (
        11,
        "search.storage",
        "postgres://me:***@host/db",
    ),
    ("cpu: 0.5", "gpu: 1.5"): (11, "search.resources.gpu", "at most 1, or a whole number"),
    ("seeds: 3}", "seeds: 3}\ntracking: {log_model: all}"): (13, "tracking.log_model", 'got "all"'),
    ("seeds: 3}", "seeds: 3}\ntracking: {log_model: {choices: [none, best]}}"): (
        13,
        "tracking.log_model",
        "only the recipe is searched",
    ),
    ("seeds: 3", "seeds: true"): (12, "certify.seeds", "must be an integer, but got true"),
    ("epochs: {low: 1", "epochs: {low: 0"): (9, "recipe.epochs.low", "must be greater than 0"),
    ("epochs: {low: 1, high: 4}", "epochs: four"): (9, "recipe.epochs", "must be a number"),
    ("epochs: {low: 1, high: 4}", "epochs: {min: 1, max: 4}"): (9, "recipe.epochs", "`{low: …,"),
    ("batch_size: 64", "batch_size: {values: [8, 64]}"): (10, "recipe.batch_size", "`{choices:"),
    ("batch_size: 64", "batch_size: 64\n  lr_schedule: {values: [constant, cosine]}"): (
        11,
        "recipe.lr_schedule",
        "`{choices: […]}`",
    ),
    ("epochs: {low: 1, high: 4}", "epochs: {low: 1}"): (9, "recipe.epochs", "`low` and `high`"),
    ("  epochs: {low: 1, high: 4}\n", ""): (3, "recipe.epochs", "must be given. Passes over"),
    ("batch_size: 64", "batch_size: 64.0"): (10, "recipe.batch_size", "must be an integer"),
    ("batch_size: 64", "batch_size: {low: 8, high: 64.5}"): (10, "recipe.batch_size", "integers"),
    ("batch_size: 64", "batch_size: {choices: [8, 0]}"): (10, "recipe.batch_size", "greater than"),
    ("batch_size: 64", "batch_size: {choices: []}"): (10, "recipe.batch_size", "not be empty"),
    ("batch_size: 64", "batch_size: 64\n  precision: {low: 1, high: 2}"): (
        11,
        "recipe.precision",
        "a range must be given only where a number belongs",
    ),
    ("batch_size: 64", "batch_size: 64\n  precision: {choices: [fp32, bf17]}"): (
        11,
        "recipe.precision",
        "Did you mean `bf16`?",
    ),
    ("batch_size: 64", "batch_size: 64\n  precision: {choices: {fp32: {}}}"): (
        11,
        "recipe.precision",
        "need a field that holds a component",
    ),
    ("batch_size: 64", "batch_size: 64\n  precision: {choices: [fp32, fp16]}"): (
        11,
        "recipe.precision",
        "use bf16 or a GPU, but got precision=fp16",
    ),
    ("batch_size: 64", "batch_size: 64\n  accumulation_steps: {choices: [1, auto]}"): (
        3,
        "recipe",
        "without batch_size, but got accumulation_steps=auto",
    ),
    ("batch_size: 64", "batch_size: 1151"): (10, "recipe.batch_size", "must be at most 1150"),
    ("      adamw: {lr: 1e-3}", "      adam_w: {lr: 1e-3}"): (
        8,
        "recipe.optimizer.adam_w",
        "Did you mean `adamw`?",
    ),
    ("      adamw: {lr: 1e-3}", "      adamw:"): (8, "recipe.optimizer.adamw.lr", "must be given"),
    ("      adamw: {lr: 1e-3}", "      adamw: {lr: 1e-3, beta1: 1.0}"): (
        8,
        "recipe.optimizer.adamw.beta1",
        "must be less than 1",
    ),
    ("model: {resnet20: {}}", "model: {choices: [resnet20, timm]}"): (4, "recipe.model", "name"),
    ("model: {resnet20: {}}", "model: {low: 1, high: 2}"): (4, "recipe.model", "must be one of"),
    ("model: {resnet20: {}}", "model: resnet2"): (4, "recipe.model", "Did you mean `resnet20`?"),
    ("model: {resnet20: {}}", "model: 20"): (4, "recipe.model", "must be one of resnet20"),
    ("model: {resnet20: {}}", "model: !!python/name:os.x"): (4, "recipe.model", "must have no tag"),
    ("batch_size: 64", "batch_size: 64\n  batch_size: 8"): (11, "recipe.batch_size", "given once"),
    ("batch_size: 64", "batch_size: 64\n  label_smoothing: .nan"): (
        11,
        "recipe.label_smoothing",
        "finite number",
    ),
}


@pytest.mark.parametrize("change", WRONG, ids=lambda change: change[1].strip()[:40])
def test_mistake_is_reported_once_with_its_line(write, change):
    line, path, words = WRONG[change]
    (problem,) = problems_of(write(changed(*change)))
    assert (problem.line, problem.path) == (line, path)
    assert words in str(problem)


def test_searched_workload_is_refused(write):
    text = changed(
        "workload: digits", "workload: {dataset: digits, target: {value: {low: 1, high: 2}}}"
    )
    (problem,) = problems_of(write(text))
    assert problem.path == "workload.target.value"
    assert "no search may touch it" in problem.must


def test_two_components_side_by_side_are_both_checked(write):
    text = changed("    choices:\n", "").replace("      ", "    ").replace("lr: 1e-3", "lrr: 1e-3")
    problems = problems_of(write(text))
    paths = [p.path for p in problems]
    assert paths == ["recipe.optimizer", "recipe.optimizer.adamw.lrr", "recipe.optimizer.adamw.lr"]
    assert problems[0].hint == "To search over several, put them under `choices:`."


def test_missing_data_hides_no_other_mistake(write, tmp_path):
    text = changed(
        "workload: digits", "workload: {dataset: {name: cifar10, root: no}, target: {value: 0.9}}"
    )
    problems = problems_of(write(text.replace("epochs: {low: 1", "epochs: {low: 9")))
    assert [p.path for p in problems] == ["workload.dataset", "recipe.epochs.low"]
    study = load_study(write(text), check_data=False)
    assert study.workload.dataset == DATASETS["cifar10"](root=str(tmp_path / "no"))  # type: ignore[call-arg]


def test_split_that_leaves_nothing_is_refused(write):
    workload = "{dataset: digits, target: {value: 0.9}, split: {train_samples: 5000}}"
    (problem,) = problems_of(write(changed("workload: digits", f"workload: {workload}")))
    assert problem.path == "workload.split.train_samples"


def test_grid_sampler_needs_a_finite_space(write):
    text = changed("trials: 4", "sampler: grid")
    (problem,) = problems_of(write(text))
    assert (problem.line, problem.path) == (7, "recipe.optimizer.sgd.lr")
    study = load_study(write(text), overrides=["optimizer.sgd.lr=0.1"])
    assert study.space.size == 2 * 4


def test_policy_takes_its_own_default_sampler_or_any_with_time_to_target(write):
    assert load_study(write(GOOD)).search.sampler == "gain"
    assert load_study(write(changed("trials: 4", "policy: vanilla"))).search.policy == "vanilla"
    text = changed("trials: 4", "policy: time_to_target, sampler: gp")
    assert load_study(write(text)).search.sampler == "gp"


@pytest.mark.parametrize(
    "storage", ["a/file.journal", "sqlite:////a.db", "postgresql+psycopg2://me:pw@host/db"]
)
def test_storage_is_a_path_or_a_database(write, storage):
    text = changed("trials: 4", f"storage: '{storage}'")
    assert load_study(write(text)).search.storage == storage


def test_rule_between_fields_of_a_component_is_found(write):
    schedule = "{one_cycle: {base_momentum: {choices: [0.8, 0.97]}, max_momentum: 0.95}}"
    text = changed("batch_size: 64", f"batch_size: 64\n  lr_schedule: {schedule}")
    (problem,) = problems_of(write(text))
    assert (problem.line, problem.path) == (11, "recipe.lr_schedule.one_cycle")
    assert problem.given == "lr_schedule.one_cycle.base_momentum=0.97"


def test_half_precision_is_fine_on_a_gpu(write):
    text = changed("batch_size: 64", "batch_size: 64\n  precision: fp16")
    assert len(problems_of(write(text))) == 1
    assert load_study(write(text), overrides=["search.resources.gpu=0.25"]).search.resources.gpu


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just text", "recipe: [1, 2\n"])
def test_what_is_no_study_is_refused(write, text):
    assert problems_of(write(text))[0].file.endswith("file.yaml")


def test_unreadable_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must be a file, or the name of a shipped one"):
        load_study(tmp_path)
    with pytest.raises(ConfigError, match=r"Did you mean `digits_quickstart`\?"):
        load_study("digits_quickstar")


def test_study_can_come_through_a_pipe(tmp_path):
    read_end, write_end = os.pipe()
    os.write(write_end, GOOD.encode())
    os.close(write_end)
    assert stat.S_ISFIFO(os.fstat(read_end).st_mode)
    assert load_study(f"/dev/fd/{read_end}").name == "tiny"
    os.close(read_end)


def test_recipe_with_searched_values_is_not_trained(write):
    problems = problems_of(write(GOOD), load=load_recipe)
    assert [(p.line, p.path) for p in problems] == [(5, "recipe.optimizer"), (9, "recipe.epochs")]
    assert "Fix it with `--set epochs=VALUE`, or run `tune-speed search`." in str(problems[1])


def test_fixed_recipe_is_trained(write):
    file = load_recipe(
        write(GOOD), overrides=["optimizer={sgd: {lr: 0.5}}", "epochs=2", "run.seed=3"]
    )
    assert file.recipe.optimizer.lr == 0.5  # type: ignore[attr-defined]
    assert (file.recipe.epochs, file.run.seed, file.name) == (2, 3, "tiny")


def test_resolved_tree_makes_the_same_recipe_again(write):
    file = load_recipe(write(GOOD), overrides=["optimizer=adamw", "optimizer.lr=0.1", "epochs=2"])
    again = parse_recipe(dump_yaml(file.tree), file="again")
    assert (again.recipe, again.workload, again.name) == (file.recipe, file.workload, file.name)


def test_half_precision_needs_a_gpu_to_train(write):
    fixed = ["optimizer={sgd: {lr: 0.5}}", "epochs=2", "precision=fp16"]
    assert load_recipe(write(GOOD), overrides=fixed).recipe.precision == "fp16"
    (problem,) = problems_of(write(GOOD), overrides=[*fixed, "run.device=cpu"], load=load_recipe)
    assert (problem.file, problem.path) == ("--set precision=fp16", "recipe.precision")


def test_source_tree_is_not_the_files_text(write):
    study = load_study(write(GOOD), overrides=["epochs=2"])
    assert parse_yaml(study.text).tree["recipe"]["epochs"] == {"low": 1, "high": 4}
    assert study.tree["recipe"]["epochs"] == 2


FORMER_NAMES = [
    ("drop_on_stall", "reduce_on_plateau", "recipe.lr_schedule"),
    ("{step_drops: {gamma: 0.5}}", "multi_step", "recipe.lr_schedule.step_drops"),
    ("{choices: [constant, step_drops]}", "multi_step", "recipe.lr_schedule"),
]


@pytest.mark.parametrize(("schedule", "present", "path"), FORMER_NAMES)
def test_former_name_of_an_entry_is_refused_and_the_present_one_named(
    write, schedule, present, path
):
    text = changed("batch_size: 64", f"batch_size: 64\n  lr_schedule: {schedule}")
    (problem,) = problems_of(write(text))
    assert (problem.file, problem.line, problem.path) == (str(write(text)), 11, path)
    assert problem.hint == f"Did you mean `{present}`, as it is called now?"


@pytest.mark.parametrize(
    ("schedule", "given"),
    [
        ("reduce_on_plateau", None),
        ("{choices: [one_cycle, reduce_on_plateau]}", "lr_schedule=reduce_on_plateau"),
    ],
)
def test_no_schedule_follows_the_loss_of_images_that_a_certification_trains_on(
    write, schedule, given
):
    text = changed("batch_size: 64", f"batch_size: 64\n  lr_schedule: {schedule}")
    assert load_study(write(text)).workload.certify_on == "train"
    overrides = ["workload.certify_on=train+validation"]
    (problem,) = problems_of(write(text), overrides=overrides)
    assert (problem.line, problem.path) == (11, "recipe.lr_schedule")
    assert "must not follow the validation loss" in problem.must and given in (problem.given, None)
    steady = changed("batch_size: 64", "batch_size: 64\n  lr_schedule: one_cycle")
    study = load_study(write(steady), overrides=overrides)
    assert study.workload.certify_on == "train+validation"
