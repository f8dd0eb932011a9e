"""The commands as calls: `search`, `train` and `ablate` here, `certify` beside what it certifies.

```python
import tune_speed

study = tune_speed.search("digits_quickstart", trials=10)
print(study)                                     # a notebook shows `study` as tables
again = tune_speed.train(study.recipe, seeds=3)  # study.recipe is None if no trial reached it
again.times_s
```

Where a command takes a file, a call takes a path, the name of a shipped file, or a dict of the
file's form: a whole study, or its recipe alone next to `workload`. A dict is validated as a file
is. `set` overrides values: `{"search.trials": 5, "optimizer.sgd.lr": 0.1}`, or
`["search.trials=5"]` as on the command line.

Results are stored where the commands store theirs. Nothing is printed: progress is logged by
`logging.getLogger("tune_speed")` at INFO, or shown on stderr with `progress=True`, and in a
notebook or at Python's prompt unless `progress=False`. Ctrl-C, and a notebook's stop button, end a
call in the main thread early, with what is done: `was_stopped` says so.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from tune_speed.api.entry import agree_on_token, check_least, in_python, load_plugins
from tune_speed.core.errors import ConfigError
from tune_speed.tuning.driver import control
from tune_speed.tuning.driver.control import WAIT_S
from tune_speed.tuning.driver.requests import Answer

if TYPE_CHECKING:
    from tune_speed.api.ablated import Ablated
    from tune_speed.api.inputs import Overrides, Tree
    from tune_speed.api.progress import Progress
    from tune_speed.api.study import Study
    from tune_speed.api.trained import Compared, Trained
    from tune_speed.core.targets import Target
    from tune_speed.custom.trial import Train
    from tune_speed.experiments.ablation.plan import AblationPlan
    from tune_speed.training.workload import Workload


# Imports wait for the calls: torch, Ray and MLflow take seconds.


@in_python
def search(
    space: "str | Path | Tree",
    *,
    train: "Train | None" = None,
    target: "float | Tree | Target | None" = None,
    workload: "str | Tree | Workload | None" = None,
    study: str | None = None,
    trials: int | None = None,
    time_budget: str | float | None = None,
    concurrent: int | str | None = None,
    address: str | None = None,
    set: "Overrides | None" = None,
    resume: bool = False,
    from_mlflow: bool = False,
    download: bool = False,
    progress: "bool | Progress | None" = None,
    plugins: Sequence[str | Path] = (),
) -> "Study":
    """Searches for the recipe that reaches the target soonest; `tune-speed search` as a call.

    Where the study has a section `certify` and a trial met the target, the fastest are certified.

    With `train` a function `my_train(params, run)` of your own is searched, with values of the
    space and a `tune_speed.custom.OwnRun`. Of the study, `recipe` then holds the function's values,
    under any names, and `workload` the target, `mode` and `max_train_s`.

    Args:
        space: a study file, the name of a shipped one, or a dict of that form; with `train` also
            a dict of the function's values alone.
        train: the training function; None: recipes are searched.
        target: what counts as done: a number (of `accuracy`), or a dict such as
            `{"metric": "loss", "value": 0.3, "mode": "min"}`; None: what the workload says.
        workload: what must be reached; None: what the study says.
        study: name of the study; None: what the study says, else its file's name, else `space`.
        trials: in all.
        time_budget: the search ends after this long, and running trials are stopped: seconds, or
            `90s`, `30m`, `2h`.
        concurrent: trials at the same time; `auto`: as many as finish most an hour.
        address: Ray cluster: `auto`, `HOST:PORT` or `ray://HOST:PORT`; None: a local one.
        set: values to override, by their dotted path.
        resume: resume this study; no finished trial runs again.
        from_mlflow: rebuild its ledger from MLflow first, where that was lost.
        download: fetch the data set if it is missing.
        progress: show how far it is; None: in a notebook or at a prompt only.
        plugins: files or installed distributions that add models, data sets and so on.

    Returns: the study. Without a trial that met the target its `best` is None.

    Raises: ConfigError, DataError, ServiceError, StorageError.
    """
    # Before anything that may import Ray, plugins included.
    agree_on_token(address)
    load_plugins(plugins)
    from tune_speed.api.inputs import overrides_of, own_study_from, study_from, target_override
    from tune_speed.api.progress import Progress
    from tune_speed.api.study import search_study
    from tune_speed.core.folders import studies_folder

    overrides = overrides_of(
        set,
        study=study,
        search__trials=trials,
        search__time_budget=time_budget,
        search__concurrent=concurrent,
    )
    if train is None:
        overrides += target_override(target)
        checked = study_from(space, workload=workload, overrides=overrides, check_data=not download)
    else:
        checked = own_study_from(
            space, train, target=target, workload=workload, overrides=overrides
        )
    if isinstance(space, Mapping):
        # The search writes this file of a dict: the study can be searched again from it.
        file = studies_folder() / checked.name / "study.yaml"
        checked = dataclasses.replace(checked, file=str(file))
    return search_study(
        checked,
        address=address,
        resume=resume or from_mlflow,
        from_mlflow=from_mlflow,
        download=download,
        progress=Progress.of(progress),
    )


class _TrainOptions(TypedDict, total=False):
    workload: "str | Tree | Workload | None"
    study: str | None
    seeds: int
    save: str | Path | None
    set: "Overrides | None"
    download: bool
    progress: "bool | Progress | None"
    plugins: Sequence[str | Path]


@overload
def train(
    recipe: "str | Path | Tree", *, against: None = ..., **options: Unpack[_TrainOptions]
) -> "Trained": ...


@overload
def train(
    recipe: "str | Path | Tree", *, against: "str | Path | Tree", **options: Unpack[_TrainOptions]
) -> "Compared": ...


@in_python
def train(
    recipe: "str | Path | Tree",
    *,
    workload: "str | Tree | Workload | None" = None,
    study: str | None = None,
    seeds: int = 1,
    against: "str | Path | Tree | None" = None,
    save: str | Path | None = None,
    set: "Overrides | None" = None,
    download: bool = False,
    progress: "bool | Progress | None" = None,
    plugins: Sequence[str | Path] = (),
) -> "Trained | Compared":
    """Trains one recipe, once or with several seeds; `tune-speed train` as a call.

    It needs neither Ray nor MLflow, unless the recipe is that of a trial in MLflow.

    Args:
        recipe: a recipe file, a shipped one's name, an MLflow run id, `STUDY/TRIAL`, or a dict.
        workload: what must be reached; None: what the recipe's file says.
        study: name of the study in the record; None: what the file says, else its name.
        seeds: runs, with seeds one after the other.
        against: another recipe: both train in turns, with the same seeds and the same `set`.
        save: file that gets the trained network, for `predict`: that of the run whose last value of
            the target's metric is the best. Not with `against`.
        set: values to override, by their dotted path.
        download: as of `search`.
        progress: as of `search`.
        plugins: as of `search`.

    Returns: the runs; with `against` those of both, and which is faster.

    Raises: ConfigError, DataError, StorageError.
    """
    check_least("seeds", seeds)
    if save is not None and against is not None:
        raise ConfigError.of("save", "must be left out with `against`", given=str(save))
    load_plugins(plugins)
    from tune_speed.api.inputs import overrides_of, recipe_from
    from tune_speed.api.progress import Progress
    from tune_speed.api.trained import train_files

    overrides = overrides_of(set, study=study)
    given = [recipe] if against is None else [recipe, against]
    files = [
        recipe_from(each, workload=workload, overrides=overrides, check_data=not download)
        for each in given
    ]
    is_one = against is None
    names = [
        f.name if is_one or isinstance(g, Mapping) else str(g)
        for g, f in zip(given, files, strict=True)
    ]
    shown = Progress.of(progress)
    file = None if save is None else Path(save)
    return train_files(files, names, seeds=seeds, save=file, download=download, progress=shown)


@in_python
def ablate(
    recipe: "str | Path | Tree",
    *,
    workload: "str | Tree | Workload | None" = None,
    study: str | None = None,
    axes: str | Mapping[str, Any] | None = None,
    design: str | None = None,
    seeds: int | None = None,
    retune: str | None = None,
    set: "Overrides | None" = None,
    download: bool = False,
    again: bool = False,
    plot: str | Path | None = None,
    progress: "bool | Progress | None" = None,
    plugins: Sequence[str | Path] = (),
) -> "Ablated":
    """Runs a recipe with and without changes, in turns; `tune-speed ablate` as a call.

    Every arm runs once with each seed. Called again, it resumes where it stopped.

    Args:
        recipe: a recipe file, a shipped one's name, an MLflow run id, `STUDY/TRIAL`, or a dict.
        axes: what is changed, `{"batch_size": [32, 64]}` or `batch_size=32|64`; None: the file's.
        design: `one-at-a-time`, `leave-one-out`, `factorial`, `stacking` or `cumulative`; None:
            the file's, else `one-at-a-time`.
        seeds: runs of each arm; None: the file's, else 5.
        retune: re-tune this number for each arm: `lr`.
        again: start over.
        plot: where the picture goes (.png or .svg); None: next to the figures.
        workload: as of `train`.
        study: as of `train`.
        set: values to override, by their dotted path.
        download: as of `search`.
        progress: as of `search`.
        plugins: as of `search`.

    Raises: ConfigError, DataError, StorageError.
    """
    if seeds is not None:
        check_least("seeds", seeds)
    load_plugins(plugins)
    from tune_speed.api.ablated import save
    from tune_speed.api.inputs import overrides_of
    from tune_speed.api.progress import Progress
    from tune_speed.core.folders import studies_folder
    from tune_speed.experiments.ablation.ablate import run_ablation
    from tune_speed.experiments.ablation.design import parse_axes

    shown = Progress.of(progress)
    overrides = overrides_of(
        set,
        study=study,
        ablate__axes=parse_axes(axes) if isinstance(axes, str) else axes,
        ablate__design=design,
        ablate__seeds=seeds,
        ablate__retune=retune,
    )
    from tune_speed.runtime.file_lock import TemporaryFolder

    # Each arm reads its recipe again from a file, so a dict becomes one for as long as they run.
    with TemporaryFolder() as folder:
        ablation = run_ablation(
            _plan(recipe, workload, overrides, folder, check_data=not download),
            folder=studies_folder(),
            again=again,
            download=download,
            on_progress=shown.decoded,
            on_line=shown.line,
        )
    return save(ablation, None if plot is None else Path(plot), progress=shown)


@in_python
def steer(study: "str | Study") -> "Steering":
    """Returns what steers a running search; `tune-speed try` and `tune-speed steer` as calls.

    `tune_speed.steer("my_study").pause()`, from another process or thread than the search's.

    Args:
        study: the name of a study, whose folder is here ($TUNE_SPEED_STUDIES), or the study.

    Raises: ConfigError if there is no such study here.
    """
    name = study if isinstance(study, str) else study.name
    control.folder_of(name)
    return Steering(name)


def _plan(
    recipe: "str | Path | Tree",
    workload: "str | Tree | Workload | None",
    overrides: list[str],
    folder: Path,
    *,
    check_data: bool,
) -> "AblationPlan":
    from tune_speed.api.inputs import recipe_from, source_of, workload_override
    from tune_speed.experiments.ablation.plan import plan_ablation

    if not isinstance(recipe, Mapping):
        every = [*workload_override(workload), *overrides]
        return plan_ablation(str(recipe), overrides=every, check_data=check_data)
    # First as a dict: mistakes then name no file that will be gone when they are read.
    recipe_from(recipe, workload=workload, overrides=overrides, check_data=check_data)
    path = folder / "recipe.yaml"
    path.write_text(source_of(recipe, workload, file="recipe").text, encoding="utf-8")
    return plan_ablation(str(path), overrides=overrides, check_data=check_data)


class Steering:
    """The search of a study that runs, in whatever process, on a machine that has its folder.

    A call returns the driver's answer, or raises ConfigError (it cannot be, no search runs, or the
    driver refuses), ServiceError (no answer within `wait_s`) or StorageError.
    """

    def __init__(self, study: str, *, wait_s: float = WAIT_S) -> None:
        """Looks at nothing yet."""
        self.study, self.wait_s = study, wait_s

    def try_next(self, params: Mapping[str, Any]) -> Answer:
        """Adds a trial, the next to begin; what `params` (by short names too) lack is filled."""
        return self.send({"action": "try", "params": dict(params)})

    def stop(self, trial_id: str) -> Answer:
        """Ends a trial that runs, with what it has measured so far."""
        return self.send({"action": "stop", "trial": trial_id})

    def pause(self) -> Answer:
        """Lets no trial begin; those that run go on to their ends."""
        return self.send({"action": "pause"})

    def go_on(self) -> Answer:
        """Lets trials begin again."""
        return self.send({"action": "go-on"})

    def set(self, **changes: Any) -> Answer:
        """Changes `trials`, `concurrent` or `time_budget` (None: no limit)."""
        return self.send({"action": "set", **changes})

    @in_python
    def send(self, request: Mapping[str, Any]) -> Answer:
        """Writes a request, `action` and its fields, such as `{"action": "stop", "trial": …}`."""
        return control.send(self.study, request, wait_s=self.wait_s)

    def history(self) -> list[dict[str, Any]]:
        """Returns all requests, answered or not, as dicts. Raises: ConfigError, StorageError."""
        return control.history(self.study)
