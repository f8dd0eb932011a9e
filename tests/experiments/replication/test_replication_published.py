import pytest
from helpers.experiments.replications import make_claim

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.replication.figures import paper_figure

S0 = {"source": "Nokhwal et al. 2023", "table": "Table I"}
PAIR = {**S0, "model": "ResNet-50", "dataset": "CIFAR-10", "setting": "with techniques"}
S3 = {"source": "Solomatov & Stepanov", "table": "Results", "dataset": "CIFAR-10"}
NICKA = {"source": "Nicka 2021", "table": "text"}
DEPTH = {**S3, "model": "ResNet-20", "setting": "stochastic depth, 200 epochs"}
PREACT = {**S3, "model": "pre-activation ResNet-20", "setting": "pre-activation, 200 epochs"}
BASE = "baseline, 200 epochs"
BEFORE = {"over": BASE, "over_model": "ResNet-20"}
WITHOUT = {"over": "without techniques"}
VGG = {"source": "Nicka 2021", "table": "Table I", "model": "VGG16-BN", "dataset": "CIFAR-10"}
P100 = {**VGG, "setting": "pretrained, 1 epoch, BlueCrystal4 (Tesla P100)"}

# Figure, where it stands, value, unit.
LOOKED_UP = [
    ("speed_up", {**PAIR, "metric": "exec_time", "over": "without techniques"}, 0.86 / 0.46, "×"),
    ("accuracy", {**PAIR, "metric": "accuracy"}, 93.0, "%"),
    ("accuracy_gain", {**PAIR, "metric": "accuracy", **WITHOUT}, -0.07, "points"),
    ("time_saved", {**DEPTH, "metric": "exec_time", "over": BASE}, 100 * (1 - 1.5 / 2.7), "%"),
    ("time_increase", {**DEPTH, "metric": "exec_time", "over": BASE}, 80.0, "%"),
    ("accuracy_gain", {**PREACT, "metric": "test_accuracy", **BEFORE}, 0.5, "points"),
    ("epoch_s", {**PAIR, "metric": "exec_time", "per_epoch": True}, 0.46 * 3600 / 30, "s"),
    ("speed_up", {**PAIR, "metric": "exec_time", "over": "without techniques", "per_epoch": True},
     0.86 / 0.46, "×"),
    ("epoch_s", {**P100, "metric": "time_per_epoch"}, 318.0, "s"),
    ("peak_memory_gib", {**P100, "metric": "gpu_memory"}, 11.3, "GB"),
    ("time_saved", {**NICKA, "model": "all", "dataset": "both", "metric": "time_reduction",
                    "setting": "BluePebble vs BlueCrystal4"}, 40.0, "%"),
    ("speed_up", {"source": "blog post", "table": "text", "setting": "mixed precision",
                  "metric": "speedup"}, 2.0, "×"),
]  # fmt: skip


@pytest.mark.parametrize(("figure", "place", "value", "unit"), LOOKED_UP)
def test_figure_is_looked_up_and_set_against_another(figure, place, value, unit):
    found = paper_figure(make_claim(figure, published=place))
    assert (found.value, found.unit) == (pytest.approx(value), unit)


def test_known_defects_of_both_figures_and_of_the_claim_come_along():
    place = {**PAIR, "metric": "exec_time", "over": "without techniques"}
    found = paper_figure(make_claim(published=place, defect="no repeats"))
    assert found.source == "Nokhwal et al. 2023, Table I, with techniques"
    first, second = found.defects
    assert first == "no repeats"
    assert "46 minutes" in second


def test_literal_has_the_unit_of_its_figure():
    found = paper_figure(make_claim("accuracy", paper=93.1, source="S0", defect="copied"))
    assert found == (93.1, "%", "S0", ("copied",))
    assert paper_figure(make_claim("epoch_s", paper=2, unit="min")).unit == "min"


def test_unit_of_a_looked_up_figure_may_be_said_but_not_changed():
    place = {**P100, "metric": "time_per_epoch"}
    assert paper_figure(make_claim("epoch_s", published=place, unit="s")).value == 318
    with pytest.raises(ConfigError, match="must be in `unit`, which is min, but got s"):
        paper_figure(make_claim("epoch_s", published=place, unit="min"))


def test_source_may_have_no_figure():
    found = paper_figure(make_claim(paper=None, source="S0 has none"))
    assert found == (None, "×", "S0 has none", ())


def test_settings_of_unequal_length_are_told(monkeypatch):
    from tune_speed.experiments.published.published import PublishedFigure
    from tune_speed.experiments.replication import figures

    def row(setting, metric, value, unit):
        names = ("table", "model", "dataset", "printed_unit", "known_defect", "remark")
        fields = {"source": "S", "setting": setting, "metric": metric, "printed_value": value}
        rest = dict.fromkeys(names, "")
        return PublishedFigure(**{**rest, "table": "T"}, **fields, value=value, unit=unit)

    rows = [row("a", "epochs", "30", "epochs"), row("b", "epochs", "10", "epochs")]
    rows += [row("a", "exec_time", "3", "h"), row("b", "exec_time", "2", "h")]
    monkeypatch.setattr(figures, "published_figures", lambda: rows)
    place = {"source": "S", "table": "T", "setting": "b", "metric": "exec_time", "over": "a"}
    found = paper_figure(make_claim(published=place))
    assert (found.value, found.defects) == (1.5, ("the two ran 30 and 10 epochs",))
    per_epoch = paper_figure(make_claim(published={**place, "per_epoch": True}))
    assert (per_epoch.value, per_epoch.defects) == (pytest.approx(0.5), ())


REFUSED = [
    ("accuracy", {**PAIR, "metric": "acuracy"}, "Nearest are .*model: ResNet-50.*metric: accuracy"),
    ("speed_up", {**S0, "metric": "exec_time"}, "must be the place of a published figure"),
    ("speed_up", {**PAIR, "metric": "exec_time"}, "must be in × to be compared with `speed_up`"),
    ("epoch_s", {**PAIR, "metric": "exec_time"}, "Try `per_epoch: true`"),
    ("accuracy", {**PAIR, "metric": "accuracy", "per_epoch": True}, "must be a time"),
    ("epoch_s", {**PAIR, "metric": "exec_time", "over": "without techniques"}, "no `over` with"),
    ("speed_up", {**PAIR, "metric": "accuracy", "over": "without techniques"}, "no share"),
    (
        "speed_up",
        {**NICKA, "dataset": "CIFAR-10", "metric": "speedup", "setting": "num_workers increased"},
        "must be a number, but got not significant",
    ),
]


@pytest.mark.parametrize(("figure", "place", "message"), REFUSED)
def test_figure_that_cannot_stand_beside_ours_is_refused(figure, place, message):
    with pytest.raises(ConfigError, match=message) as caught:
        paper_figure(make_claim(figure, published=place), path="replication.claims[3]")
    assert str(caught.value).startswith("replication.claims[3].published: ")
