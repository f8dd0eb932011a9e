"""The command line: parse, call, print. Results go to stdout, progress and warnings to stderr."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tune_speed.cli import ablate, leaderboard, profile, report, show, watch
from tune_speed.cli.common import (
    INTERRUPTED,
    NOT_REACHED,
    DeviceOption,
    DownloadOption,
    Format,
    JsonOption,
    PluginOption,
    SetOption,
    TrainOption,
    load_plugins_of_environment,
    note,
    print_boards,
    print_decoding,
    print_rows,
    print_wide,
    say,
    stderr,
)
from tune_speed.core.errors import ConfigError, TuneSpeedError
from tune_speed.core.redact import redact
from tune_speed.runtime import process

if TYPE_CHECKING:
    from tune_speed.core.records import TrialRecord
    from tune_speed.custom.shipping import Loop
    from tune_speed.study.file import RecipeFile, StudyFile
    from tune_speed.study.settings import CertifyConfig
    from tune_speed.tuning.driver.controller import SearchController
    from tune_speed.tuning.search import SearchResult, View
    from tune_speed.tuning.simulation.comparison import Search, Terms


app = typer.Typer(
    name="tune-speed",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Find the training configuration that reaches a target accuracy soonest.",
    epilog="Exit codes: 0 done; 1 nothing met the target, or a bug; 2 wrong input; 3 data missing;"
    " 4 Ray or MLflow not reachable; 5 disk full; 130 stopped by Ctrl-C.",
)


@app.callback()
def begin() -> None:
    """Does what comes before every command."""
    load_plugins_of_environment()


def main() -> None:
    """Runs the command line; an error of the user's ends with its message and exit code."""
    process.make_patient()
    try:
        app()
    except TuneSpeedError as error:
        note(f"error: {error}")
        sys.exit(error.exit_code)


@app.command()
def search(
    space: Annotated[str, typer.Argument(help="A study file, or the name of a shipped one.")],
    trials: Annotated[int | None, typer.Option(help="Trials in all.")] = None,
    time_budget: Annotated[
        str | None, typer.Option(help="Time for the whole search, such as 90s, 30m or 2h.")
    ] = None,
    concurrent: Annotated[
        str | None,
        typer.Option(help="Trials at the same time; auto: as many as finish most an hour."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Ray cluster: auto, HOST:PORT or ray://HOST:PORT; default: a local one."),
    ] = None,
    train: TrainOption = None,
    set_: SetOption = None,
    plugin: PluginOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with this study; no finished trial runs again.")
    ] = False,
    download: DownloadOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search for the recipe that reaches the target soonest; ends with a leaderboard.

    With --train the values under `recipe` are those of a training function of your own, and
    `workload` has the target, `mode` and `max_train_s`.

    Example: tune-speed search digits_quickstart --trials 40 --set search.sampler=gp
    """
    options = {"trials": trials, "time_budget": time_budget, "concurrent": concurrent}
    given = [f"search.{name}={value}" for name, value in options.items() if value is not None]
    overrides = [*(set_ or []), *given]
    study = _study(space, overrides, train=train, address=address, check_data=not download)
    from tune_speed.tuning import search as studies

    result = studies.search(
        study,
        address=address,
        resume=resume,
        download=download,
        on_progress=print_decoding,
        make_view=_live_view,
        on_line=note,
    )
    if result.model_line:
        note(result.model_line)
    certifies = study.certify is not None and not result.was_stopped
    has_winner = any(row.rank for board in result.boards for row in board.rows)
    if not (as_json and certifies and has_winner):
        _print_search(result, study, train=train, as_json=as_json)
    if result.was_stopped:
        again = [argument for argument in sys.argv[1:] if argument != "--resume"]
        note(redact(f"stopped; go on with: tune-speed {shlex.join(again)} --resume"))
        raise typer.Exit(INTERRUPTED)
    if not has_winner:
        raise typer.Exit(NOT_REACHED)
    if study.certify is not None:
        found = json.loads(_search_json(result, study.name)) if as_json else None
        _certify(
            study.name,
            study.certify,
            train=train,
            loop=study.loop,
            address=address,
            search=found,
            anew_if_changed=True,
        )


def _study(
    space: str, overrides: list[str], *, train: str | None, address: str | None, check_data: bool
) -> "StudyFile":
    if train is None:
        from tune_speed.study.file import load_study

        return load_study(space, overrides=overrides, check_data=check_data)
    _agree_on_token(address)
    from tune_speed.api.inputs import own_study_from
    from tune_speed.cli.function_file import function_of

    return own_study_from(
        space, function_of(train), target=None, workload=None, overrides=overrides
    )


def _agree_on_token(address: str | None) -> None:
    """Must come before Ray is imported."""
    if address is not None:
        from tune_speed.tuning.ray.token import agree_on_token

        agree_on_token(address)


@app.command()
def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe file, a shipped one's name, or an MLflow run id.")
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Runs, with seeds one after the other.")] = 1,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER", help="Another recipe: train both in turns, and say which is faster."
        ),
    ] = None,
    set_: SetOption = None,
    plugin: PluginOption = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train one recipe, once or with several seeds; needs neither Ray nor MLflow for a file.

    With --against OTHER both train with the same seeds, and --set applies to both.

    Example: tune-speed train recipe.yaml --seeds 5 --set run.device=cpu
    """
    from tune_speed.experiments.rerun import load_rerun

    names = [recipe] if against is None else [recipe, against]
    files = [load_rerun(name, overrides=set_ or [], check_data=not download) for name in names]
    if against is None:
        records, was_stopped = _train(files[0], seeds, download=download, as_json=as_json)
    else:
        records, was_stopped = _train_both(
            files[0], files[1], names, seeds, download=download, as_json=as_json
        )
    runs = [run for record in records for run in record.runs]
    for record in records:
        if record.runs[-1].traceback and all(run.status == "failed" for run in record.runs):
            note(record.runs[-1].traceback)
    if was_stopped:
        planned = seeds * len(files)
        note(f"stopped; shown are the {len(runs)} of {planned} runs that were done")
        raise typer.Exit(INTERRUPTED)
    if not any(run.time_to_target_s is not None for run in runs):
        raise typer.Exit(NOT_REACHED)


def _train(
    file: "RecipeFile", seeds: int, *, download: bool, as_json: bool
) -> tuple[list["TrialRecord"], bool]:
    """Trains and prints; returns the record, if a run was done, and whether Ctrl-C came."""
    from tune_speed.experiments.rerun import train_seeds
    from tune_speed.experiments.run_summary import runs_dict, runs_text
    from tune_speed.reporting.trials.text import to_json

    record, was_stopped = train_seeds(
        file, seeds=seeds, download=download, on_progress=print_decoding, on_line=note
    )
    if record is not None:
        say(to_json(runs_dict(record)) if as_json else runs_text(record))
    return [record] if record is not None else [], was_stopped


def _train_both(
    a: "RecipeFile",
    b: "RecipeFile",
    names: list[str],
    seeds: int,
    *,
    download: bool,
    as_json: bool,
) -> tuple[list["TrialRecord"], bool]:
    """Trains both in turns and prints; returns as `_train`."""
    from tune_speed.experiments.head_to_head import duel_dict, duel_text, train_both
    from tune_speed.reporting.trials.text import to_json

    duel = train_both(
        a, b, seeds=seeds, download=download, on_progress=print_decoding, on_line=note
    )
    records = [record for record in (duel.a, duel.b) if record is not None]
    if records:
        say(to_json(duel_dict(duel)) if as_json else duel_text(duel, a=names[0], b=names[1]))
    return records, duel.was_stopped


@app.command()
def certify(
    study: Annotated[str, typer.Argument(help="A study in MLflow.")],
    top: Annotated[int, typer.Option(min=1, help="Fastest estimates to run again.")] = 5,
    seeds: Annotated[int, typer.Option(min=1, help="Fresh seeds of each.")] = 5,
    final: Annotated[int, typer.Option(min=0, help="How many go on to the final.")] = 2,
    final_seeds: Annotated[int, typer.Option(min=1, help="Fresh seeds of each in it.")] = 20,
    train: TrainOption = None,
    device: DeviceOption = None,
    plugin: PluginOption = None,
    address: Annotated[
        str | None,
        typer.Option(help="Ray cluster: auto, HOST:PORT or ray://HOST:PORT; default: a local one."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Begin anew, with other seeds, where one was begun.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a study's fastest again with fresh seeds, alone on the device, on the test part.

    Goes on where it stopped when it is given again. A study of a training function needs --train.

    Example: tune-speed certify digits_quickstart --top 3 --seeds 3 --final 2 --final-seeds 5
    """
    from tune_speed.study.settings import CertifyConfig

    config = CertifyConfig(top=top, seeds=seeds, final=final, final_seeds=final_seeds)
    found: dict[str, Any] | None = {} if as_json else None
    _certify(
        study,
        config,
        train=train,
        loop=_loop(train, address),
        device=device,
        address=address,
        again=again,
        search=found,
    )


def _loop(train: str | None, address: str | None) -> "Loop | None":
    if train is None:
        return None
    _agree_on_token(address)
    from tune_speed.cli.function_file import function_of
    from tune_speed.custom.shipping import packed

    return packed(function_of(train))


def _certify(
    study: str,
    config: "CertifyConfig",
    *,
    train: str | None,
    loop: "Loop | None",
    address: str | None,
    search: dict[str, Any] | None,
    device: str | None = None,
    again: bool = False,
    anew_if_changed: bool = False,
) -> None:
    """Certifies and prints what came of it: as JSON into what is in `search`, unless it is None."""
    _agree_on_token(address)
    from tune_speed.core.folders import studies_folder
    from tune_speed.experiments.certification.certify import certify as run_certification
    from tune_speed.experiments.certification.report import as_dict, certification_text
    from tune_speed.reporting.leaderboard.ranking import make_boards

    result = run_certification(
        study,
        config=config,
        folder=studies_folder() / study,
        device=device,
        address=address,
        again=again,
        on_line=note,
        anew_if_changed=anew_if_changed,
        loop=loop,
    )
    if result.was_stopped:
        note(f"stopped; go on with: {_certify_command(study, train)}, and the same options")
        raise typer.Exit(INTERRUPTED)
    if search is not None:
        say(json.dumps({**search, "certification": as_dict(result)}, indent=2))
    else:
        boards = make_boards(((None, record) for record in result.records), with_misses=True)
        print_boards(boards, Format.TABLE)
        say(certification_text(result))
    if not any(run.time_to_target_s for record in result.records for run in record.runs):
        raise typer.Exit(NOT_REACHED)


def _certify_command(study: str, train: str | None) -> str:
    from tune_speed.cli.function_file import again_with

    return f"tune-speed certify {shlex.quote(study)}{'' if train is None else again_with(train)}"


app.command()(ablate.ablate)
app.command()(ablate.replicate)
app.command()(leaderboard.best)
app.command()(leaderboard.leaderboard)
app.command("list")(show.list_)
app.command()(show.show)
app.command()(report.report)
app.command()(profile.profile)
app.command()(show.compare)
app.command()(watch.watch)


@app.command()
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
    as_json: JsonOption = False,
) -> None:
    """Run searches in virtual time, on recorded or modelled trainings: no trial is trained.

    Example: tune-speed simulate --benchmark synthetic-4-fixed_length
    """
    if from_study is not None or out is not None:
        _save_study(from_study, out, as_json=as_json)
        return
    from tune_speed.tuning.simulation.comparison import Terms

    budgets = _budgets(budget or ("20,100" if compare else "20"))
    terms = Terms(budget_runs=budgets[-1], num_workers=workers, trial_overhead_s=overhead_s)
    if compare:
        plot = plot or Path("policy_comparison.png")
        _compare(benchmark, policy, budgets, terms, seeds or 10, jobs, plot, as_json=as_json)
        return
    only_compared = {"--seeds": seeds, "--jobs": jobs, "--plot": plot}
    if given := [name for name, value in only_compared.items() if value is not None]:
        raise ConfigError(f"{', '.join(given)} must go with --compare. Add --compare.")
    _demonstrate(benchmark, policy, terms, as_json=as_json)


@app.command()
def schema(plugin: PluginOption = None, as_json: JsonOption = False) -> None:
    """Print the JSON Schema of study files, for editors that complete and check YAML.

    Example: tune-speed schema > study.schema.json
    """
    from tune_speed.study.json_schema import json_schema

    say(json.dumps(json_schema(), indent=2))


@app.command()
def doctor(plugin: PluginOption = None, as_json: JsonOption = False) -> None:
    """Check this machine: versions, devices, memory, disk, caches, Ray and MLflow.

    Example: tune-speed doctor
    """
    from tune_speed.cli.doctor import examine

    findings = examine()
    if as_json:
        say(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        rows = [
            {"check": f.check, "state": "ok" if f.is_ok else "PROBLEM", "found": f.found}
            for f in findings
        ]
        print_rows(rows, title="doctor")
    if not all(finding.is_ok for finding in findings):
        raise typer.Exit(NOT_REACHED)


def _budgets(text: str) -> list[float]:
    """Returns budgets in full runs' worth, the largest last."""
    try:
        budgets = sorted({float(part) for part in text.split(",")})
    except ValueError:
        budgets = []
    if not budgets or not all(0 < runs < float("inf") for runs in budgets):
        must = "must be positive numbers of full runs, such as 20 or 20,100"
        raise ConfigError(f"--budget {must}, but got {text!r}.")
    return budgets


def _save_study(study: str | None, out: Path | None, *, as_json: bool) -> None:
    from tune_speed.tuning.simulation import benchmarks as simulation

    if study is None or out is None:
        raise ConfigError("--from-study NAME and --out FILE.parquet must be given together.")
    saved = simulation.save_study(study, out, on_trial=_print_reading)
    rows, left_out = len(saved.table.rows), saved.table.left_out
    if as_json:
        say(json.dumps({"path": str(out), "runs": rows, "left_out": left_out}, indent=2))
        return
    space = "the study's file" if saved.is_own_space else "what its trials span"
    say(f"wrote {out}: {rows} runs; search space: {space}")
    for reason, number in left_out.items():
        say(f"left out: {number} trials, {reason}")
    say(f"compare policies on it with: tune-speed simulate --compare --benchmark {out}")


def _print_reading(done: int, total: int) -> None:
    if sys.stderr.isatty() or done == total:
        end = "\n" if done == total else ""
        print(f"\rreading: {done}/{total} trials", end=end, file=sys.stderr, flush=True)


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
        say(json.dumps(simulation.demonstration_dict(shown), indent=2))
    else:
        print_wide(report.demonstration_tables(shown))
    if not shown.trace.incumbents:
        raise typer.Exit(NOT_REACHED)


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
    from tune_speed.tuning.policies import POLICY_NAMES
    from tune_speed.tuning.simulation import benchmarks as simulation
    from tune_speed.tuning.simulation import plots, report

    checked = simulation.check_policies(policies or POLICY_NAMES)
    benchmarks = simulation.find_benchmarks(names or simulation.SYNTHETIC)
    plots.check_format(plot)
    done = simulation.compare(
        benchmarks,
        checked,
        num_seeds=num_seeds,
        terms=terms,
        jobs=jobs or os.cpu_count() or 1,
        on_search=_print_simulated,
    )
    if done.searches:
        plots.plot_comparison(done.searches, budgets, plot)
        note(f"wrote {plot}")
        if as_json:
            say(json.dumps(simulation.comparison_dict(done.searches, budgets), indent=2))
        else:
            print_wide(report.comparison_tables(done.searches, budgets))
    if done.was_stopped:
        note(f"stopped; shown are the {len(done.searches)} searches that were done")
        raise typer.Exit(INTERRUPTED)


def _print_simulated(search: "Search", done: int, total: int) -> None:
    best = f"best {search.incumbents[-1][1]:.4g} s" if search.incumbents else "target not met"
    trials = sum(search.statuses.values())
    what = f"{search.policy} on {search.benchmark}, seed {search.seed}"
    note(f"[{done}/{total}] {what}: {best}, {trials} trials ({search.took_s:.1f} s)")


def _live_view(controller: "SearchController") -> "View":
    from tune_speed.reporting.live import LiveView

    study = controller.study
    started = f"{study.name}: {study.search.trials} trials, {study.search.at_once} at a time"
    target = study.workload.target
    note(f"{started}; target {target.words}, {study.workload.mode}")
    return LiveView(
        stderr(),
        trials=study.search.trials,
        finished=list(controller.ledger.records.values()),
        time_left_s=controller.time_left_s,
        metric=target.metric,
    )


def _search_json(result: "SearchResult", study: str) -> str:
    from tune_speed.reporting.trials.text import search_json
    from tune_speed.tracking.store.uri import strip_secrets

    return search_json(
        result.records,
        result.boards,
        study=study,
        folder=str(result.folder),
        uri=strip_secrets(result.uri),
    )


def _print_search(
    result: "SearchResult", study: "StudyFile", *, train: str | None, as_json: bool
) -> None:
    from tune_speed.reporting.trials.text import next_steps
    from tune_speed.tracking.store.uri import strip_secrets
    from tune_speed.tracking.writer.tracker import names_of

    places = {"study": study.name, "folder": str(result.folder), "uri": strip_secrets(result.uri)}
    if as_json:
        say(_search_json(result, study.name))
    else:
        print_boards(list(result.boards), Format.TABLE)
        is_open = train is not None and study.certify is None
        steps = next_steps(
            result.records,
            result.boards,
            **places,
            num_undelivered=len(result.undelivered),
            certify=_certify_command(study.name, train) if is_open else "",
        )
        say(steps)
    if result.undelivered:
        note(
            f"warning: MLflow at {places['uri']} has not taken {names_of(result.undelivered)}"
            f" ({result.undelivered[0].reason}); the ledger in {result.folder} has them, and"
            " --resume delivers them."
        )
