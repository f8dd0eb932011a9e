import pytest
from helpers.experiments.replications import shipped
from helpers.making import make_record, make_run

from tune_speed.core.records import Clocks
from tune_speed.core.words import Device
from tune_speed.experiments.published.side_by_side import paper_table


def _arm(point, *, train_s=1800.0, name="seed_resnet50", runs=None):
    run = make_run(time_s=train_s, accuracy=0.9312)
    changes = {"clocks": Clocks(train_s=train_s, wall_s=2 * train_s)}
    runs = runs or (run.model_copy(update=changes),)
    return shipped(name, point).model_copy(update={"runs": runs})


def _figures(table, **where):
    return [row for row in table["figures"] if all(row[k] == v for k, v in where.items())]


def test_ours_stands_beside_theirs_in_their_unit():
    table = paper_table([_arm(0)])
    near = "without techniques"
    [accuracy] = _figures(table, metric="accuracy", setting=near)
    assert (accuracy["theirs"], accuracy["unit"]) == (93.07, "%")
    assert accuracy["ours"] == pytest.approx(93.12)
    [time] = _figures(table, metric="execution time", setting=near)
    assert (time["ours"], time["theirs"], time["unit"]) == (1.0, 0.86, "h")
    assert accuracy["source"] == "Nokhwal et al. 2023, Table I"
    assert accuracy["run"] == "seed_resnet50/t0000"


def test_both_f1_scores_are_shown_with_the_defect_of_theirs():
    table = paper_table([_arm(0)])
    [macro, _] = _figures(table, metric="macro F1")
    assert macro["ours"] == pytest.approx(93.12 / 2)
    assert "equal to the accuracy" in macro["known_defect"]
    assert "does not say" in macro["note"]


def test_what_differs_is_counted_and_told():
    table = paper_table([_arm(0)])
    told = {row["setting"]: row for row in table["settings"]}
    assert len(told) == 2
    for row in table["figures"]:
        assert row["differs"] == len(told[row["setting"]]["differs"].split("; "))


def test_several_runs_count_with_their_mean():
    runs = tuple(make_run(accuracy=accuracy) for accuracy in (0.92, 0.94))
    [accuracy, _] = _figures(paper_table([_arm(0, runs=runs)]), metric="accuracy")
    assert accuracy["ours"] == pytest.approx(93)


def test_speed_ups_need_both_arms_of_one_length_on_one_device():
    without, with_ = _arm(0, train_s=3000.0), _arm(1, train_s=1500.0)
    [row] = _figures(paper_table([without, with_]), metric="speed-up")
    assert (row["ours"], row["theirs"]) == (2.0, pytest.approx(0.86 / 0.46))
    assert "46 minutes" in row["known_defect"]
    [alone] = _figures(paper_table([with_]), metric="speed-up")
    assert alone["ours"] is None
    shorter = without.model_copy(update={"recipe": {**without.recipe, "epochs": 10.0}})
    elsewhere = without.model_copy(update={"device": Device(type="NVIDIA H200")})
    for base in (shorter, elsewhere):
        [row] = _figures(paper_table([base, with_]), metric="speed-up")
        assert row["ours"] is None


def test_bf16_is_mixed_precision_too():
    with_ = _arm(1)
    bf16 = with_.model_copy(update={"recipe": {**with_.recipe, "precision": "bf16"}})
    table = paper_table([_arm(0), bf16])
    assert _figures(table, metric="speed-up")[0]["ours"] == 1.0
    assert any("precision fp16 there, bf16 here" in row["differs"] for row in table["settings"])


def test_the_best_model_counts_from_the_plain_baseline():
    baseline = _arm(0, name="seed_resnet20", train_s=500.0)
    recipe = {
        **baseline.recipe,
        "model": {"preact_resnet": {"depth": 20, "dropout": 0.0, "stem": "cifar"}},
        "speedups": {"depth": {"stochastic_depth": {"survival": 0.5, "rule": "uniform"}}},
        "devices": 4,
        "batch_size": 256,
    }
    device = Device.model_validate("4 x GPU")
    changes = {"recipe": recipe, "device": device, "runs": (make_run(time_s=100.0),)}
    best = baseline.model_copy(update={"trial_id": "t9", **changes})
    where = {"run": "seed_resnet20/t9", "setting": "best model, 200 epochs"}
    [row] = _figures(paper_table([baseline, best]), metric="speed-up", **where)
    assert (row["ours"], row["theirs"]) == (5.0, pytest.approx(162 / 32, abs=5e-3))


def test_memory_is_compared_on_gpus_only():
    record = _arm(0, name="seed_resnet20")
    vgg = {**record.recipe, "model": {"vgg16_bn": {"stem": "native"}}}
    on_cpu = record.model_copy(update={"recipe": vgg})
    gpu = {"device": Device(type="NVIDIA H200")}
    run = record.runs[0].model_copy(update={**gpu, "peak_memory_gib": 10.0})
    on_gpu = on_cpu.model_copy(update={**gpu, "runs": (run,)})
    for each, ours in ((on_cpu, None), (on_gpu, 10 * 1.073741824)):
        rows = _figures(paper_table([each]), metric="GPU memory")
        assert {row["ours"] for row in rows} == {ours}


def test_a_network_or_data_set_that_nobody_published_is_told():
    table = paper_table([make_record()])
    assert table["notes"][0].startswith("study/t0000: no source is known to have its network")
    assert (table["figures"], table["settings"]) == ([], [])
