import pytest
from helpers.experiments.replications import make_claim

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.replication.replicate import check_claims, parts_of
from tune_speed.experiments.replication.shipped import sections
from tune_speed.study.file import load_recipe

FILE = """\
workload: digits
recipe: {model: resnet20, optimizer: {sgd: {lr: 0.1}}, epochs: 1, batch_size: 8, loader: dataloader}
ablate: {axes: {precision: fp16, accumulation_steps: 2}, design: stacking}
replication:
  title: T.
  question: Q?
  checks: [{question: "Q?", expected: "64", check: samples_per_step}]
  parts: {a: {}, b: {ablate.axes: {devices: 4}, ablate.design: one-at-a-time, epochs: 3}}
scale:
  cpu: {about: Less., set: {epochs: 2, ablate.axes: {precision: bf16}}}
  gpu: {about: Less., set: {model: resnet20}, parts: {c: {}}}
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(FILE)
    return path


def test_full_is_the_file_with_its_parts(path):
    full = parts_of(sections(path), "full")
    assert list(full) == ["a", "b"] and full["a"] == []
    assert full["b"][-1] == "epochs=3"


def test_values_of_the_profile_come_before_those_of_the_part(path):
    assert parts_of(sections(path), "cpu")["b"][0] == "epochs=2"
    file = load_recipe(path, overrides=parts_of(sections(path), "cpu")["b"], check_data=False)
    assert (file.recipe.epochs, file.ablate.axes) == (3, {"devices": 4})


def test_parts_of_the_profile_stand_in_the_place_of_the_files(path):
    assert parts_of(sections(path), "gpu") == {"c": ['model="resnet20"']}


def test_file_without_parts_is_the_only_one(path):
    path.write_text(FILE.replace("  parts: {a", "  caveats: []\n# {a"))
    assert parts_of(sections(path), "full") == {"": []}


def test_profile_that_is_not_there_is_refused_with_the_nearest(path):
    with pytest.raises(ConfigError, match=r"there are full, cpu, gpu, but got cpuu.*`cpu`"):
        parts_of(sections(path), "cpuu")


@pytest.mark.parametrize("text", ["null", "true", "1e-3", "a: b", "a #b", "[x", "ä"])
def test_text_of_a_part_stays_the_text_that_it_is(path, text):
    dataset = f"workload: {{dataset: {{name: cifar10, root: {text!r}}}, target: {{value: 0.9}}}}"
    path.write_text(FILE.replace("model: resnet20}, parts", f"{dataset}}}, parts"))
    file = load_recipe(path, overrides=parts_of(sections(path), "gpu")["c"], check_data=False)
    assert file.tree["workload"]["dataset"]["root"] == text


def test_claims_are_checked_before_anything_runs(path):
    replication, scales = sections(path)
    right = [
        make_claim(part="a", arm="accumulation_steps=2 + precision=fp16"),
        make_claim(part="b", arm="devices=4"),
    ]
    check_claims(path, (replication.model_copy(update={"claims": right}), scales))
    wrong = [*right, make_claim(part="a", arm="precision=bf16"), make_claim(part="c")]
    with pytest.raises(ConfigError) as caught:
        check_claims(path, (replication.model_copy(update={"claims": wrong}), scales))
    arm, part = map(str, caught.value.problems)
    assert arm.startswith("replication.claims[2].ours: must be a part, and an arm of it")
    assert arm.endswith("Did you mean `a: precision=fp16`?")
    assert part.startswith("replication.claims[3].ours: ")
