import csv
from collections import Counter
from pathlib import Path

import pytest

from tune_speed.experiments.published.published import (
    SETTINGS,
    SOURCES,
    PublishedFigure,
    paper_listing,
    published_figures,
)

REFERENCE = Path(__file__).parents[4] / "shared" / "reference" / "seed_tables.csv"
"""The table that the figures were brought in from, where it is at hand."""

DOCUMENTS = {
    "000": "Nokhwal et al. 2023",
    "001": "Nicka 2021",
    "002": "review of Nokhwal et al.",
    "003": "Solomatov & Stepanov",
    "004": "blog post",
}
LIMITS = {
    "%": (0, 100),
    "h": (0.01, 120),
    "s": (60, 600),
    "nat": (0, 5),
    "GB": (0.5, 24),
    "x": (1, 6),
}


def _one(**where: str) -> PublishedFigure:
    [figure] = [f for f in published_figures() if all(getattr(f, k) == v for k, v in where.items())]
    return figure


def _exec_h(table: str, setting: str, model: str, dataset: str) -> float:
    figure = _one(table=table, setting=setting, model=model, dataset=dataset, metric="exec_time")
    assert figure.number is not None
    return figure.number


def test_each_table_has_as_many_figures_as_in_print():
    counts = Counter((figure.source, figure.table) for figure in published_figures())
    # Table I: 3 networks, 2 data sets, 2 arms, 7 columns; Nicka: 5 networks, 4 columns.
    assert counts["Nokhwal et al. 2023", "Table I"] == 3 * 2 * 2 * 7
    assert [counts["Nicka 2021", f"Table {n}"] for n in ("I", "II", "III", "IV")] == [5 * 4] * 4
    assert counts["Nicka 2021", "Table V"] == 4 * 2
    assert counts["Solomatov & Stepanov", "Results"] == 6 * 3
    assert [counts["FFCV", "README"], counts["Wightman et al. 2021", "text"]] == [6 * 2, 5]
    assert sum(counts.values()) == 287


P100 = "pretrained, 1 epoch, BlueCrystal4 (Tesla P100)"
RTX = "pretrained, 1 epoch, BluePebble (RTX 3080 Ti)"
BEST = "best model, 200 epochs"
IN_PRINT = [
    ("Table I", "ResNet-50", "CIFAR-10", "without techniques", "accuracy", 93.07, "93.07 %"),
    ("Table I", "ResNet-50", "CIFAR-100", "with techniques", "exec_time", 0.18, "0.18 h"),
    ("Table I", "ViT", "CIFAR-100", "without techniques", "val_loss", 2.46, "2.46 %"),
    ("Table I", "EfficientNet", "CIFAR-10", "with techniques", "exec_time", 1.05, "1.05 h"),
    ("Table III", "VGG19", "CIFAR-100", P100, "time_per_epoch", 366, "6.1 min"),
    ("Table IV", "ResNet-18", "CIFAR-100", RTX, "gpu_memory", 8.8, "8.8 Gb"),
    ("Results", "pre-activation ResNet-20", "CIFAR-10", BEST, "test_accuracy", 93.4,
     "0.934 fraction"),
    ("Results", "ResNet-20", "CIFAR-10", "baseline, 200 epochs", "exec_time", 2.7, "2:42 h:mm"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "model", "dataset", "setting", "metric", "value", "printed"), IN_PRINT
)
def test_values_are_those_in_print(table, model, dataset, setting, metric, value, printed):
    figure = _one(table=table, model=model, dataset=dataset, setting=setting, metric=metric)
    assert figure.number == pytest.approx(value)
    assert f"{figure.printed_value} {figure.printed_unit}" == printed


def test_every_figure_is_in_the_reference_table():
    if not REFERENCE.exists():
        pytest.skip("needs the reference table, which is no part of the repository")
    with REFERENCE.open() as file:
        theirs = [
            (DOCUMENTS[row["seed_file"][:3]], row["table"], row["value"])
            for row in csv.DictReader(file)
        ]
    there = [f for f in published_figures() if f.source in DOCUMENTS.values()]
    ours = [(f.source, f.table, _in_the_reference(f)) for f in there]
    assert Counter(ours) == Counter(theirs)


def _in_the_reference(figure: PublishedFigure) -> str:
    if figure.printed_unit != "h:mm":
        return figure.printed_value
    hours, minutes = figure.printed_value.split(":")
    return str(int(hours) * 60 + int(minutes))


def test_units_are_sane():
    by_metric = {}
    for figure in published_figures():
        by_metric.setdefault(figure.metric, set()).add(figure.unit)
        if figure.unit in LIMITS and figure.number is not None:
            low, high = LIMITS[figure.unit]
            assert low <= figure.number <= high, figure
    assert all(len(units) == 1 for name, units in by_metric.items() if name != "speedup")


def test_scores_of_the_project_are_percentages_of_what_it_printed():
    for figure in published_figures():
        if figure.printed_unit == "fraction":
            assert figure.number == pytest.approx(100 * float(figure.printed_value))


def test_printed_speed_ups_are_ratios_of_printed_times_but_for_one_product():
    def ratio(model: str, arm: str) -> float:
        base_h = _exec_h("Results", "baseline, 200 epochs", "ResNet-20", "CIFAR-10")
        return base_h / _exec_h("Results", f"{arm}, 200 epochs", model, "CIFAR-10")

    def printed(setting: str) -> float | None:
        return _one(table="text", setting=setting, metric="speedup").number

    preact = "pre-activation ResNet-20"
    assert printed("4 GPUs") == pytest.approx(ratio("ResNet-20", "4 GPUs"), abs=0.05)
    assert printed("stochastic depth") == pytest.approx(ratio("ResNet-20", "stochastic depth"))
    assert printed("best model") == pytest.approx(ratio(preact, "best model"), abs=0.1)
    product = _one(table="text", setting="best model, product of the parts")
    assert product.number == pytest.approx(1.8 * 3.3)
    assert "7.02" in product.known_defect


def test_memory_shares_are_of_one_size_of_memory_on_each_cluster():
    """The P100 has 16 GB and the 3080 Ti 12 GB; shares are rounded to whole percents."""
    figures = [f for f in published_figures() if f.source == "Nicka 2021"]
    memory = {_place(f): f.number for f in figures if f.metric == "gpu_memory"}
    shares = {_place(f): f.number for f in figures if f.metric == "gpu_memory_share"}
    assert memory.keys() == shares.keys()
    for place, share in shares.items():
        size_gb = 16 if "P100" in place[-1] else 12
        assert 100 * memory[place] / size_gb == pytest.approx(share, abs=1.1)


def _place(figure: PublishedFigure) -> tuple[str, ...]:
    return (figure.table, figure.model, figure.setting)


def test_f1_that_equals_the_accuracy_is_flagged():
    table = [f for f in published_figures() if (f.source, f.table) == (DOCUMENTS["000"], "Table I")]
    scores = {(f.model, f.dataset, f.setting, f.metric): f for f in table}
    f1s = [figure for place, figure in scores.items() if place[-1] == "f1"]
    assert len(f1s) == 12
    for f1 in f1s:
        assert f1.number == scores[f1.model, f1.dataset, f1.setting, "accuracy"].number
        assert "equal to the accuracy" in f1.known_defect


def test_the_paper_contradicts_itself_where_the_figures_say_so():
    where = {"model": "EfficientNet", "metric": "exec_time"}
    for dataset, setting in [
        ("CIFAR-10", "without techniques"),
        ("CIFAR-10", "with techniques"),
        ("CIFAR-100", "without techniques"),
    ]:
        table, text = (
            _one(table=t, **where, dataset=dataset, setting=setting)
            for t in ("Table I", "text VII Results")
        )
        assert table.number != text.number
        assert f"{text.value} h" in table.known_defect
        assert f"{table.value} h" in text.known_defect


def test_losses_and_accuracies_of_training_images_are_flagged():
    for dataset in ("CIFAR-10", "CIFAR-100"):
        for setting in ("without techniques", "with techniques"):
            where = {"table": "Table I", "model": "EfficientNet", "dataset": dataset}
            for metric in ("accuracy", "val_loss"):
                figure = _one(**where, setting=setting, metric=metric)
                assert "training images" in figure.known_defect


def test_each_source_is_cited_and_listed():
    assert {figure.source for figure in published_figures()} == set(SOURCES)
    assert {setting.source for setting in SETTINGS} <= set(SOURCES)
    rows = {row["name"]: row for row in paper_listing()}
    assert sum(row["figures"] for row in rows.values()) == 287
    assert rows["Solomatov & Stepanov"]["datasets"] == "CIFAR-10"


def test_no_figure_speaks_of_our_own_files():
    text = " ".join(str(figure.model_dump()) for figure in published_figures()).lower()
    assert "seed" not in text
    assert ".txt" not in text
