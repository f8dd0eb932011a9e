"""How soon each search policy finds a fast recipe, in virtual time: the figures of the README.

    python tests/benchmarks/bench_search_policy.py [--seeds 10] [--jobs 2]
    python tests/benchmarks/bench_search_policy.py --ablation   # our policy minus each of its parts
    python tests/benchmarks/bench_search_policy.py --only-cost  # seconds and memory of asking

Every policy on every benchmark, the synthetic ones and the recorded ones in `data/`, with every
seed: one search over 4 workers with 100 full runs' worth of budget, from which 20 are read off.
Prints Markdown tables, and writes the plot and all results as JSON into `--out`. Finished searches
are kept in a file there; run again, it goes on where it stopped. After a change to a policy, name
it with `--again`; after one to a benchmark, delete the file.

The cost of a policy is measured on one synthetic benchmark: the time of `ask` where 500 and where
20,000 trials have finished, and what a process grows by when the policy takes over 10,000 trials
and is asked once.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from pydantic import TypeAdapter

sys.path[:0] = [str(Path(__file__).parents[1])]

from helpers.tuning.policies import FACTORIES, problem_of  # noqa: E402

from tune_speed.core.records import Status  # noqa: E402
from tune_speed.core.text import Interval  # noqa: E402
from tune_speed.tuning.policies import POLICY_NAMES, make_policy  # noqa: E402
from tune_speed.tuning.policy.base import (  # noqa: E402
    Outcome,
    Parts,
    Policy,
    Proposal,
)
from tune_speed.tuning.policy.curve import crossing  # noqa: E402
from tune_speed.tuning.policy.encoding import Encoder  # noqa: E402
from tune_speed.tuning.policy.optuna_study import Sampling  # noqa: E402
from tune_speed.tuning.policy.samplers import hush_optuna  # noqa: E402
from tune_speed.tuning.policy.time_to_target import TimeToTarget  # noqa: E402
from tune_speed.tuning.simulation import benchmarks, scores  # noqa: E402
from tune_speed.tuning.simulation.benchmarks import Factory, Plan, Search, Terms  # noqa: E402
from tune_speed.tuning.simulation.report import (  # noqa: E402
    OVERALL_COLUMNS,
    caption,
    plot_comparison,
    ratio_text,
)
from tune_speed.tuning.simulation.scores import NEAR, Score, overall, score  # noqa: E402
from tune_speed.tuning.simulation.simulate import Benchmark  # noqa: E402

DATA = Path(__file__).parent / "data"
OURS = "time_to_target"


def ours_but(benchmark: Benchmark, seed: int, *, sampler: str = "gain", **parts: Any) -> Policy:
    """Returns our policy with another sampler, or with parts left out."""
    problem = problem_of(benchmark, seed)
    return TimeToTarget(problem, sampling=Sampling(sampler), parts=Parts(**parts))


ABLATIONS: dict[str, Factory] = {
    "start at any cost": partial(ours_but, start_pool=1),
    "without exploration": partial(ours_but, explore_every=0),
    "sampler tpe": partial(ours_but, sampler="tpe"),
    "sampler qmc": partial(ours_but, sampler="qmc"),
    "rungs keep half": partial(ours_but, rung_keeps=0.5),
    "without repeats": partial(ours_but, repeats=False),
}
"""Our policy minus each of its parts, and with other figures: from a benchmark and a seed."""
ABLATION_BASES = (OURS, "vanilla")
ASKED = (500, 20_000)
HELD = 10_000
NUM_ASKS = 30
COST_BENCHMARK = "synthetic-4-fixed_length"


def main() -> None:
    arguments = parse_arguments()
    hush_optuna()
    if not arguments.only_cost:
        compare(arguments)
    print_cost()


def parse_arguments() -> argparse.Namespace:
    recorded = sorted(str(path) for path in DATA.glob("*.parquet"))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="processes at the same time")
    parser.add_argument("--budget", type=float, nargs="+", default=[20, 100], help="in full runs")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--overhead-s", type=float, default=0.0)
    parser.add_argument("--policy", nargs="+", default=[*POLICY_NAMES, *FACTORIES])
    parser.add_argument("--benchmark", nargs="+", default=[*benchmarks.SYNTHETIC, *recorded])
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--only-cost", action="store_true")
    parser.add_argument("--again", nargs="+", default=[], help="policies whose kept searches go")
    parser.add_argument("--out", type=Path, default=Path("build/search_policy"))
    return parser.parse_args()


def compare(arguments: argparse.Namespace) -> None:
    """Runs the searches that are not done yet, prints the tables, and writes plot and results."""
    name = "ablation" if arguments.ablation else "policies"
    policies = [*ABLATION_BASES, *ABLATIONS] if arguments.ablation else arguments.policy
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = arguments.out / f"{name}.jsonl"
    plan = Plan(
        benchmarks.find_benchmarks(arguments.benchmark),
        policies,
        seeds=range(arguments.seeds),
        terms=Terms(
            budget_runs=max(arguments.budget),
            num_workers=arguments.workers,
            trial_overhead_s=arguments.overhead_s,
        ),
        factories={**ABLATIONS, **FACTORIES},
    )
    kept_ones = [search for search in read_searches(kept) if search.policy not in arguments.again]
    write_searches(kept, kept_ones)
    known = [s for s in kept_ones if task_of(s) in plan.tasks and s.terms == plan.terms]
    plan.tasks = [task for task in plan.tasks if task not in set(map(task_of, known))]

    def keep(search: Search, done: int, total: int) -> None:
        with kept.open("a") as file:
            file.write(line_of(search))
        print(f"[{done}/{total}] {task_of(search)} {search.took_s:.1f} s", file=sys.stderr)

    result = benchmarks.compare(plan, jobs=arguments.jobs, on_search=keep)
    if searches := sorted([*known, *result.searches], key=plan.place):
        budgets = sorted(arguments.budget)
        results = scores.comparison_dict(searches, budgets)
        (arguments.out / f"{name}.json").write_text(json.dumps(results, indent=1))
        plot_comparison(searches, budgets, arguments.out / f"{name}.png")
        print(comparison_markdown(searches, budgets))
    if result.was_stopped:
        raise SystemExit(f"stopped after {len(searches)} searches")


def task_of(search: Search) -> tuple[str, str, int]:
    return search.benchmark, search.policy, search.seed


def read_searches(path: Path) -> list[Search]:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    # The last line of a run that was killed may be half written.
    read = TypeAdapter(Search).validate_json
    return [read(line) for line in lines if line.endswith("\n")]


def write_searches(path: Path, searches: Sequence[Search]) -> None:
    path.write_text("".join(map(line_of, searches)))


def line_of(search: Search) -> str:
    return json.dumps(asdict(search)) + "\n"


def comparison_markdown(searches: Sequence[Search], budgets: Sequence[float]) -> str:
    """Returns a comparison as Markdown: benchmarks down, policies across, then the ratios."""
    scores = score(searches, budgets)
    parts = []
    for budget_runs in budgets:
        within = [row for row in scores if row.budget_runs == budget_runs]
        title = f"within {budget_runs:g} full runs' worth (ratio to vanilla)"
        parts.append(f"**Best time to target [s]** {title}\n")
        parts.append(matrix(within, best_cell))
        parts.append(f"**Time until within {NEAR}x of the best known [s]** {title}\n")
        parts.append(matrix(within, near_cell))
    ratios = overall(searches, budgets)
    if ratios:
        cells = [[cell(row) for cell in OVERALL_COLUMNS.values()] for row in ratios]
        parts += ["**All benchmarks**, geometric means\n", markdown(list(OVERALL_COLUMNS), cells)]
    return "\n".join([*parts, caption(searches), ""])


def best_cell(row: Score) -> str:
    return cell_of(row.best_s, row.best_ratio, row.num_missed, row.num_seeds, "missed")


def near_cell(row: Score) -> str:
    return cell_of(row.near_s, row.near_ratio, row.num_not_near, row.num_seeds, "never")


def cell_of(value_s: float, ratio: Interval | None, failed: int, seeds: int, what: str) -> str:
    parts = [f"{value_s:.4g}"]
    parts += [ratio_text(ratio)] if ratio else []
    parts += [f"{failed}/{seeds} {what}"] if failed else []
    return "; ".join(parts)


def matrix(scores: Sequence[Score], cell: Callable[[Score], str]) -> str:
    policies = list(dict.fromkeys(row.policy for row in scores))
    rows: dict[str, dict[str, str]] = {}
    for row in scores:
        rows.setdefault(row.benchmark, {})[row.policy] = cell(row)
    cells = [[name, *(row.get(policy, "–") for policy in policies)] for name, row in rows.items()]
    return markdown(["benchmark", *policies], cells)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def print_cost() -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        for asked in ASKED:
            asks_s = pool.submit(ask_times_s, asked).result()
            longest_ms, median_ms = 1000 * max(asks_s), 1000 * statistics.median(asks_s)
            times = f"median {median_ms:.1f} ms, longest {longest_ms:.1f} ms of {len(asks_s)}"
            print(f"{OURS}: asking at {asked} finished trials: {times} (bar: 50 ms)")
        grown_mb, took_s = pool.submit(held).result()
    print(
        f"{OURS}: holding {HELD} trials: {grown_mb:.0f} MB (bar: 500 MB), taken in {took_s:.1f} s"
    )


def ask_times_s(asked: int) -> list[float]:
    """Returns the seconds that `ask` took, from `asked` finished trials on."""
    hush_optuna()
    benchmark = benchmarks.find_benchmark(COST_BENCHMARK)
    policy = our_policy(benchmark)
    policy.restore(finished=finished_trials(benchmark, asked), unfinished=())
    times_s = []
    for _ in range(NUM_ASKS):
        started = time.perf_counter()
        proposal = policy.ask()
        times_s.append(time.perf_counter() - started)
        assert proposal is not None
        policy.finish(proposal.trial_id, outcome(benchmark, proposal.params))
    return times_s


def held() -> tuple[float, float]:
    """Returns by how many MB the process grew with `HELD` trials, and the seconds to take them."""
    hush_optuna()
    benchmark = benchmarks.find_benchmark(COST_BENCHMARK)
    warm = our_policy(benchmark)
    warm.restore(finished=finished_trials(benchmark, 20), unfinished=())
    warm.ask()
    process = psutil.Process()
    before = process.memory_info().rss
    started = time.perf_counter()
    policy = our_policy(benchmark)
    policy.restore(finished=finished_trials(benchmark, HELD), unfinished=())
    policy.ask()
    took_s = time.perf_counter() - started
    return (process.memory_info().rss - before) / 1e6, took_s


def our_policy(benchmark: Benchmark) -> Policy:
    return make_policy(OURS, problem_of(benchmark, 0))


def finished_trials(benchmark: Benchmark, number: int) -> Iterator[tuple[Proposal, Outcome]]:
    """Yields trials of configurations at random."""
    generator, encoder = np.random.default_rng(1), Encoder(benchmark.space)
    for index in range(number):
        params = encoder.params(generator.random((1, len(encoder.parameters))))[0]
        yield Proposal(f"t{index:04d}", params), outcome(benchmark, params)


def outcome(benchmark: Benchmark, params: Mapping[str, Any]) -> Outcome:
    curve = benchmark.curve(params)
    if not len(curve.train_s):
        return Outcome(Status.OOM, 0.0)
    if not np.isfinite(curve.metric).all():
        return Outcome(Status.DIVERGED, curve.end_s, curve)
    hit = crossing(curve, target=benchmark.target, mode=benchmark.mode)
    if hit is None:
        return Outcome(Status.MISSED, curve.end_s, curve)
    return Outcome(Status.REACHED, float(curve.train_s[hit]), curve)


if __name__ == "__main__":
    main()
