"""The command `simulate`: searches in virtual time."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli import common
from tune_speed.core.errors import ConfigError
from tune_speed.core.text import counted

if TYPE_CHECKING:
    from tune_speed.tuning.simulation.benchmarks import Search, Terms


def simulate(
    compare: Annotated[
        bool, typer.Option("--compare", help="All policies on all benchmarks: a table and a plot.")
    ] = False,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(help="A .parquet file, or a built-in one: synthetic-4-anytime; repeatable."),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="time_to_target, vanilla, …; repeatable.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at the same time.")] = 4,
    budget: Annotated[
        str | None,
        typer.Option(help="In full runs' worth of all workers; default 20, to compare 20,100."),
    ] = None,
    overhead_s: Annotated[float, typer.Option(min=0.0, help="Start-up time of a trial [s].")] = 0.0,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="With --compare: searches of each kind; default 10.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="With --compare: processes; default: one a core.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="With --compare: default policy_comparison.png.")
    ] = None,
    from_study: Annotated[
        str | None, typer.Option(help="Make a benchmark of this study's trials, into --out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The .parquet file of --from-study.")] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Run searches in virtual time, on recorded or modelled trainings: no trial is trained.

    Example: tune-speed simulate --benchmark synthetic-4-fixed_length
    """
    if from_study is not None or out is not None:
        _save_study(from_study, out, as_json=as_json)
        return
    from tune_speed.tuning.simulation.benchmarks import Terms

    budgets = _budgets(budget or ("20,100" if compare else "20"))
    # One search of the largest budget answers for all: its trace is read at the smaller ones too.
    terms = Terms(budget_runs=budgets[-1], num_workers=workers, trial_overhead_s=overhead_s)
    if compare:
        plot = plot or Path("policy_comparison.png")
        _compare(benchmark, policy, budgets, terms, seeds or 10, jobs, plot, as_json=as_json)
        return
    only_compared = {"--seeds": seeds, "--jobs": jobs, "--plot": plot}
    if given := [name for name, value in only_compared.items() if value is not None]:
        raise ConfigError(f"{', '.join(given)} must go with --compare. Add --compare.")
    _demonstrate(benchmark, policy, terms, as_json=as_json)


def _budgets(text: str) -> list[float]:
    try:
        budgets = sorted({float(part) for part in text.split(",")})
    except ValueError:
        budgets = []
    if not budgets or not all(0 < runs < float("inf") for runs in budgets):
        must = "must be positive numbers of full runs, such as 20 or 20,100"
        raise ConfigError(f"--budget {must}, but got {text!r}.")
    return budgets


def _save_study(study: str | None, out: Path | None, *, as_json: bool) -> None:
    from tune_speed.tuning.simulation.study_table import save_study

    if study is None or out is None:
        raise ConfigError("--from-study NAME and --out FILE.parquet must be given together.")

    def reading(done: int, total: int) -> None:
        # Piped, only the last count is written: `\r` overwrites nothing in a file.
        if sys.stderr.isatty() or done == total:
            end = "\n" if done == total else ""
            print(f"\rreading: {done}/{total} trials", end=end, file=sys.stderr, flush=True)

    table = save_study(study, out, on_trial=reading)
    rows, left_out = len(table.rows), table.left_out
    if as_json:
        common.say_json({"path": str(out), "runs": rows, "left_out": left_out})
        return
    space = "the study's file" if table.is_own_space else "what its trials span"
    common.say(f"wrote {out}: {counted(rows, 'run')}; search space: {space}")
    for reason, number in left_out.items():
        common.say(f"left out: {counted(number, 'trial')}, {reason}")
    common.say(f"compare policies on it with: tune-speed simulate --compare --benchmark {out}")


def _demonstrate(
    benchmarks: list[str] | None, policies: list[str] | None, terms: "Terms", *, as_json: bool
) -> None:
    from tune_speed.tuning.simulation import benchmarks as simulation
    from tune_speed.tuning.simulation import report

    if len(benchmarks or ()) > 1 or len(policies or ()) > 1:
        raise ConfigError("Several policies or benchmarks need --compare. Add --compare.")
    (policy,) = simulation.check_policies(policies or ["time_to_target"])
    (name,) = benchmarks or ["synthetic-4-fixed_length"]
    benchmark = simulation.find_benchmark(name)
    shown = simulation.demonstrate(policy, benchmark, terms=terms)
    if as_json:
        common.say_json(simulation.demonstration_dict(shown))
    else:
        common.show_parts([report.demonstration_tables(shown)])
    if not shown.trace.incumbents:
        raise typer.Exit(common.NOT_REACHED)


def _compare(
    names: list[str] | None,
    policies: list[str] | None,
    budgets: list[float],
    terms: "Terms",
    num_seeds: int,
    jobs: int | None,
    plot: Path,
    *,
    as_json: bool,
) -> None:
    from tune_speed.reporting.plot_style import check_format
    from tune_speed.tuning.policies import POLICY_NAMES
    from tune_speed.tuning.simulation import benchmarks as simulation
    from tune_speed.tuning.simulation import report, scores

    checked = simulation.check_policies(policies or POLICY_NAMES)
    benchmarks = simulation.find_benchmarks(names or simulation.SYNTHETIC)
    # Before anything is simulated: a wrong suffix must not cost a comparison.
    check_format("--plot", plot)

    def simulated(search: "Search", done: int, total: int) -> None:
        best = f"best {search.incumbents[-1][1]:.4g} s" if search.incumbents else "target not met"
        trials = counted(sum(search.statuses.values()), "trial")
        what = f"{search.policy} on {search.benchmark}, seed {search.seed}"
        common.note(f"[{done}/{total}] {what}: {best}, {trials} ({search.took_s:.1f} s)")

    plan = simulation.Plan(benchmarks, checked, seeds=range(num_seeds), terms=terms)
    done = simulation.compare(plan, jobs=jobs or os.cpu_count() or 1, on_search=simulated)
    if done.searches:
        report.plot_comparison(done.searches, budgets, plot)
        common.note(f"wrote {plot}")
        if as_json:
            common.say_json(scores.comparison_dict(done.searches, budgets))
        else:
            common.show_parts([report.comparison_tables(done.searches, budgets)])
    if done.was_stopped:
        common.note(f"stopped; shown are the {len(done.searches)} searches that were done")
        raise typer.Exit(common.INTERRUPTED)
