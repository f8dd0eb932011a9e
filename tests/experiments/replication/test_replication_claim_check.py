import pytest
from helpers.experiments.replications import BOTH, make_claim

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.replication.replicate import arms_in_full, check_claims

FILE = """\
workload: digits
recipe: {model: resnet20, optimizer: {sgd: {lr: 0.1}}, epochs: 1, batch_size: 8}
ablate: {axes: {precision: fp16, accumulation_steps: 2}, design: stacking}
replication:
  title: T.
  question: Q?
  parts: {a: {}, b: {ablate.axes: {devices: 4}, ablate.design: one-at-a-time}}
  checks: [effective_batch]
scale: {cpu: {about: Less., set: {ablate.axes: {precision: bf16, accumulation_steps: 2}}}}
"""


def test_arms_in_full_are_those_of_any_device(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(FILE)
    assert arms_in_full(path) == {
        "a": (
            "base", "precision=fp16", "accumulation_steps=2",
            "precision=fp16 + accumulation_steps=2",
        ),
        "b": ("base", "devices=4"),
    }  # fmt: skip


def test_claims_are_checked_before_anything_runs():
    arms = {"": ["base", BOTH, "precision=bf16"]}
    check_claims([make_claim(), make_claim(arm="precision=bf16")], arms)
    wrong = [make_claim(arm="precision=bf1"), make_claim(part="b"), make_claim(published={
        "source": "S9", "table": "Table I", "metric": "exec_time"})]  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        check_claims(wrong, arms)
    arm, part, published = map(str, caught.value.problems)
    assert arm.startswith("replication.claims[0].ours.arm: must be an arm, but got precision=bf1.")
    assert arm.endswith("Did you mean `precision=bf16`?")
    assert part.startswith("replication.claims[1].ours.part: must be one of the parts")
    assert published.startswith("replication.claims[2].published: must be the place")
