import json
import math
import pickle
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.tuning.policies import count_calls

from tune_speed.core.errors import ConfigError
from tune_speed.tuning.simulation.recorded import SCHEMA, RecordedBenchmark, write_table
from tune_speed.tuning.simulation.simulate import new_policy, run_policy

TREE: dict[str, Any] = {
    "optimizer": {
        "choices": {
            "sgd": {"lr": {"low": 0.01, "high": 1.0, "log": True}},
            "adamw": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
        }
    },
    "epochs": {"choices": [2, 4, 8]},
    "pct": {"low": 0.1, "high": 0.5},
}
METADATA = {"name": "made", "space": TREE, "target": 0.9, "mode": "fixed_length", "device": "cpu"}


def sgd(lr: float, *, epochs: int = 4, pct: float = 0.3) -> dict[str, Any]:
    return {"optimizer": "sgd", "optimizer.sgd.lr": lr, "epochs": epochs, "pct": pct}


def row(params: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    end_s = float(params["epochs"])
    steps = {"step": [1, 2], "train_s": [end_s / 2, end_s], "metric": [0.5, 0.8]}
    return {"params": json.dumps(params), **steps, "status": "done", "seed": 0, **fields}


def load(folder: Path, *rows: dict[str, Any], **metadata: Any) -> RecordedBenchmark:
    write_table(folder / "made.parquet", rows, {**METADATA, **metadata})
    return RecordedBenchmark.load(folder / "made.parquet")


def random_rows(number: int, *, seed: int) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    rows = []
    for index in range(number):
        name = str(generator.choice(["sgd", "adamw"]))
        low, high = (0.01, 1.0) if name == "sgd" else (1e-4, 1e-2)
        params = {
            "optimizer": name,
            f"optimizer.{name}.lr": float(low * (high / low) ** generator.random()),
            "epochs": int(generator.choice([2, 4, 8])),
            "pct": float(generator.uniform(0.1, 0.5)),
        }
        rows.append(row(params, metric=[0.1, index / number]))
    return rows


def test_a_recorded_configuration_gets_its_own_run(tmp_path: Path) -> None:
    rows = random_rows(60, seed=1)
    benchmark = load(tmp_path, *rows)
    finals = [benchmark.curve(json.loads(r["params"])).metric[-1] for r in rows]
    assert finals == [r["metric"][-1] for r in rows]


def test_runs_of_one_configuration_come_by_turns_in_the_order_of_a_search(tmp_path: Path) -> None:
    same = [row(sgd(0.1), metric=[0.1, i / 10]) for i in range(5)]
    benchmark = load(tmp_path, *same, row(sgd(0.2), metric=[0.1, 0.9]))

    def finals(seed: int) -> list[float]:
        search = benchmark.fresh(seed)
        search.curve(sgd(0.2))  # Changes nothing for the others.
        return [float(search.curve(sgd(0.1)).metric[-1]) for _ in range(10)]

    assert sorted(finals(0)[:5]) == [i / 10 for i in range(5)]
    assert finals(0)[5:] == finals(0)[:5] and finals(0) == finals(0)
    assert len({tuple(finals(seed)) for seed in range(8)}) > 4


def test_nearest_run_is_the_one_that_a_plain_search_finds(tmp_path: Path) -> None:
    rows = [json.loads(r["params"]) for r in random_rows(200, seed=2)]
    benchmark = load(tmp_path, *map(row, rows))

    def distance(a: dict[str, Any], b: dict[str, Any]) -> float:
        if a["optimizer"] != b["optimizer"] or a["epochs"] != b["epochs"]:
            return math.inf
        lr = f"optimizer.{a['optimizer']}.lr"
        # Both ranges of the learning rate span a factor of 100, pct spans 0.4.
        return math.hypot(math.log(a[lr] / b[lr]) / math.log(100), (a["pct"] - b["pct"]) / 0.4)

    for other in random_rows(50, seed=3):
        wanted = json.loads(other["params"])
        expected = min(range(200), key=lambda i: distance(wanted, rows[i]))
        assert benchmark.nearest(wanted) == expected


def test_a_length_that_nobody_ran_is_given_a_neighbour_of_the_same_optimizer(
    tmp_path: Path,
) -> None:
    adamw = {"optimizer": "adamw", "optimizer.adamw.lr": 1e-3, "epochs": 8, "pct": 0.3}
    benchmark = load(tmp_path, row(adamw), row(sgd(0.1, epochs=2)), row(sgd(0.1, epochs=4)))
    assert benchmark.nearest(sgd(0.1, epochs=8)) == 2


def test_a_choice_that_nobody_made_still_has_a_run(tmp_path: Path) -> None:
    benchmark = load(tmp_path, row(sgd(0.1, epochs=2)), row(sgd(0.1, epochs=8)))
    adamw = {"optimizer": "adamw", "optimizer.adamw.lr": 1e-3, "epochs": 8, "pct": 0.3}
    assert benchmark.nearest(adamw) == 1


def test_diverged_run_ends_in_nan_but_is_planned_like_its_neighbours(tmp_path: Path) -> None:
    others = [row(sgd(0.1, pct=pct)) for pct in (0.1, 0.2)]
    short = row(sgd(1.0), status="diverged", train_s=[0.5, 1.0])
    benchmark = load(tmp_path, short, row(sgd(0.1, epochs=8)), *others)
    assert math.isnan(benchmark.curve(sgd(1.0)).metric[-1])
    assert benchmark.curve(sgd(1.0)).end_s == 1.0
    assert benchmark.predicted_cost(sgd(1.0)) == 4.0


def test_run_without_memory_has_a_cost_but_no_curve(tmp_path: Path) -> None:
    oom = row(sgd(1.0), status="oom", step=[], train_s=[], metric=[])
    benchmark = load(tmp_path, oom, row(sgd(0.1)))
    assert len(benchmark.curve(sgd(1.0)).train_s) == 0
    assert benchmark.predicted_cost(sgd(1.0)) == 4.0


def test_planned_end_of_a_table_is_the_cost(tmp_path: Path) -> None:
    benchmark = load(tmp_path, row(sgd(0.1), planned_s=6.0), row(sgd(1.0), planned_s=None))
    assert benchmark.predicted_cost(sgd(0.1)) == 6.0
    assert benchmark.predicted_cost(sgd(1.0)) == 4.0
    assert benchmark.full_run_s == 6.0


def test_table_without_the_optional_column_is_read(tmp_path: Path) -> None:
    columns = [name for name in SCHEMA.names if name != "planned_s"]
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    schema = schema.with_metadata({"tune_speed": json.dumps(METADATA)})
    pq.write_table(pa.Table.from_pylist([row(sgd(0.1))], schema=schema), tmp_path / "a.parquet")
    benchmark = RecordedBenchmark.load(tmp_path / "a.parquet")
    assert (benchmark.name, benchmark.target, benchmark.mode) == ("made", 0.9, "fixed_length")


def test_cost_of_a_proposal_takes_as_few_calls_in_a_large_table_as_in_a_small_one(
    tmp_path: Path,
) -> None:
    proposals = [json.loads(r["params"]) for r in random_rows(300, seed=5)]

    def calls(num_rows: int) -> int:
        benchmark = load(tmp_path, *random_rows(num_rows, seed=4))
        return count_calls(lambda: [benchmark.predicted_cost(params) for params in proposals])

    assert calls(100) == calls(1000) < 30 * len(proposals)


def test_copy_in_another_process_is_searched_alike(tmp_path: Path) -> None:
    benchmark = load(tmp_path, *random_rows(100, seed=6))
    copy = pickle.loads(pickle.dumps(benchmark))
    first, second = (
        run_policy(new_policy("random", b, 1), b, num_workers=2, budget_s=100.0)
        for b in (benchmark, copy)
    )
    assert len(first.trials) > 20
    assert first == second


@pytest.mark.parametrize(
    ("rows", "metadata", "says"),
    [
        ([row(sgd(0.1), status="fine")], {}, "row 1: `status` must be"),
        ([row(sgd(0.1)), row(sgd(5.0))], {}, "row 2: "),
        ([row(sgd(0.1), train_s=[2.0, 1.0])], {}, "`train_s` must increase"),
        ([row(sgd(0.1), metric=[0.5])], {}, "2 of `train_s` and 1 of `metric`"),
        ([row(sgd(0.1), metric=[0.5, math.nan])], {}, "`metric` must be finite"),
        ([{**row(sgd(0.1)), "params": "{"}], {}, "row 1: "),
        ([row(sgd(0.1), planned_s=3.0)], {}, "`planned_s` must not lie before"),
        ([row(sgd(0.1), status="diverged")], {}, "no run went to its end"),
        ([row(sgd(0.1))], {"mode": "sometimes"}, "mode: "),
        ([row(sgd(0.1))], {"space": {"lr": {"low": 2}}}, "search space: "),
    ],
)
def test_table_that_contradicts_itself_is_refused(
    rows: list[dict[str, Any]], metadata: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, *rows, **metadata)
    assert says in str(error.value)
    assert str(tmp_path / "made.parquet") in str(error.value)
    assert "--from-study" in str(error.value)


def test_foreign_and_damaged_files_are_refused(tmp_path: Path) -> None:
    load(tmp_path, *random_rows(50, seed=7))
    whole = (tmp_path / "made.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.parquet").write_text("params,step\n")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    for name in ("cut", "text", "other", "missing"):
        with pytest.raises(ConfigError, match=f"{name}.parquet must be "):
            RecordedBenchmark.load(tmp_path / f"{name}.parquet")


def test_missing_columns_are_named(tmp_path: Path) -> None:
    table = pa.table({"params": ["{}"], "seed": [1]})
    table = table.replace_schema_metadata({"tune_speed": json.dumps(METADATA)})
    pq.write_table(table, tmp_path / "made.parquet")
    with pytest.raises(ConfigError, match="columns are missing: step, train_s, metric, status"):
        RecordedBenchmark.load(tmp_path / "made.parquet")


def test_luck_far_from_the_target_keeps_no_search_in_one_corner() -> None:
    # Where luck counted as coming nearer, fifty of 62 trials were of one corner, and none a hit.
    table = Path(__file__).parents[2] / "benchmarks/data/cifar10_jpeg_subset_seeds.parquet"
    for seed in (4, 9):
        benchmark = RecordedBenchmark.load(table).fresh(seed)
        budget_s = 5 * benchmark.full_run_s
        trace = run_policy(
            new_policy("time_to_target", benchmark, seed),
            benchmark,
            num_workers=4,
            budget_s=budget_s,
        )
        lengths = Counter(trial.params["epochs"] for trial in trace.trials)
        assert trace.incumbents and max(lengths.values()) < 2 / 3 * lengths.total()
