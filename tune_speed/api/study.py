"""A search and its result."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from tune_speed.api.entry import agree_on_token, check_least, in_python, load_plugins
from tune_speed.api.progress import Progress
from tune_speed.api.shown import Boards, Shown
from tune_speed.core.comparability import nearest
from tune_speed.core.errors import ConfigError
from tune_speed.core.folders import studies_folder
from tune_speed.core.records import Recommended, TrialRecord
from tune_speed.core.text import counted, printable, switch
from tune_speed.custom.shipping import Loop, packed
from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.trials.recipe_export import recipe_yaml
from tune_speed.reporting.trials.text import counts, next_steps
from tune_speed.study.file import StudyFile
from tune_speed.study.settings import CertifyConfig
from tune_speed.study.yaml import parse_yaml
from tune_speed.tracking.writer.tracker import names_of
from tune_speed.tuning import search as studies
from tune_speed.tuning.admission import Start
from tune_speed.tuning.search import SearchResult

if TYPE_CHECKING:
    from tune_speed.api.certified import Certified
    from tune_speed.api.forecasted import Forecasted
    from tune_speed.api.results import Results
    from tune_speed.custom.trial import Train


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Study(Shown):
    """A study at the end of a search."""

    name: str
    result: SearchResult
    address: str | None = None
    """Ray cluster that was searched on; None: a local one."""
    certify_config: CertifyConfig | None = None
    """Section `certify` of the study's file."""
    certification: "Certified | None" = None
    """Its result; None: the file has no such section, or no trial met the target."""
    loop: Loop | None = None
    """The training function that was searched; None: recipes were."""

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """All finished trials of the study, those of earlier searches included."""
        return self.result.records

    @property
    def boards(self) -> tuple[Board, ...]:
        """The leaderboards."""
        return self.result.boards

    @property
    def folder(self) -> Path:
        """Where ledger and study file are."""
        return self.result.folder

    @property
    def uri(self) -> str:
        """Address of the MLflow store, without its password."""
        return str(self.result.store)

    @property
    def was_stopped(self) -> bool:
        """Whether Ctrl-C ended the search."""
        return self.result.was_stopped

    @property
    def why_ended(self) -> str | None:
        """Why the search ended before its budget was used up; None: it did not."""
        why = self.result.why_ended
        return None if why is None else str(why)

    @property
    def recommended(self) -> Recommended | None:
        """The configuration of the least expected time to target; None: no trial met it."""
        return next(iter(self.result.favourites), None)

    @cached_property
    def best(self) -> TrialRecord | None:
        """The first trial of the recommended configuration; None: no trial met the target."""
        found = {record.trial_id: record for record in self.records}
        return None if self.recommended is None else found[self.recommended.trial_id]

    @property
    def to_train(self) -> TrialRecord | None:
        """The best trial, else that which came nearest to the target; None: none was evaluated."""
        return self.best or nearest(self.records)

    @property
    def params(self) -> dict[str, Any] | None:
        """What the best trial's training function was called with; None: there is none."""
        if self.best is None or self.loop is None:
            return None
        return dict(self.best.recipe["params"])

    @property
    def recipe_yaml(self) -> str | None:
        """A file for `train` that repeats the best trial; None: no trial, or a function's."""
        if self.best is None or self.loop is not None:
            return None
        return recipe_yaml(self.best, run_id=None, known=self.recommended)

    @property
    def recipe(self) -> dict[str, Any] | None:
        """The same as a dict, with study, workload, recipe and run; `train` takes it too."""
        text = self.recipe_yaml
        return None if text is None else dict(parse_yaml(text).tree)

    def results(self) -> "Results":
        """Returns the store that the trials are in: `study.results().trials(study.name)`."""
        from tune_speed.api.results import Results

        return Results(self.result.store.uri)

    def certify(self, **options: Any) -> "Certified":
        """Runs the fastest again with fresh seeds: `tune_speed.certify(self, **options)`."""
        return certify(self, **options)

    def forecast(
        self, *, target: float | None = None, time_budget: str | float | None = None
    ) -> "Forecasted":
        """Returns what more searching is likely to bring; `tune-speed forecast` as a call.

        Args:
            target: another value of the metric than the study's.
            time_budget: seconds or `30m`; None: what the search left, else as much as it took.

        Raises: ConfigError, ServiceError, StorageError.
        """
        from tune_speed.api.forecasted import Forecasted

        return Forecasted.of(self.result.store, self.name, target=target, time_budget=time_budget)

    def __repr__(self) -> str:
        best = self.recommended
        time = "none met the target" if best is None else f"best {best.expected_s:.3f} s"
        if best is not None and best.metric is not None:
            time = f"best {best.metric:.4f}"
        stopped = ", stopped" if self.was_stopped else ""
        trials = counted(len(self.records), "trial")
        return printable(f"Study({self.name!r}: {trials}, {time}{stopped})")

    def parts(self) -> Sequence[RenderableType]:
        """Returns leaderboards, next steps and the certification."""
        more = self.certification.parts() if self.certification else ()
        call = f"tune_speed.certify({self.name!r}, train={self.loop.name if self.loop else None})"
        return (Boards(self.boards), self.next_steps(certify=call), *more)

    def as_dict(self) -> dict[str, Any]:
        """Returns trials by status, leaderboards, places, and the certification unless stopped."""
        found = {
            "study": self.name,
            "trials": dict(counts(self.records)),
            "favourites": [each.model_dump() for each in self.result.favourites],
            "boards": [board.model_dump(mode="json") for board in self.boards],
            "why_ended": self.why_ended,
            "folder": str(self.folder),
            "tracking_uri": self.uri,
        }
        done = self.certification
        return found if done is None or done.was_stopped else found | done.as_dict()

    def next_steps(self, *, certify: str) -> str:
        """Returns how trials ended and what to do next; `certify` certifies a function's."""
        is_open = self.loop is not None and self.certify_config is None
        return next_steps(
            self.records,
            self.boards,
            study=self.name,
            folder=str(self.folder),
            uri=self.uri,
            recommended=self.recommended,
            num_undelivered=len(self.result.undelivered),
            certify=certify if is_open else "",
        )


@in_python
def certify(
    study: str | Study,
    *,
    train: "Train | None" = None,
    top: int = 5,
    seeds: int = 5,
    final: int = 2,
    final_seeds: int = 20,
    device: str | None = None,
    address: str | None = None,
    again: bool = False,
    save: str | Path | None = None,
    progress: bool | Progress | None = None,
    plugins: Sequence[str | Path] = (),
) -> "Certified":
    """Runs a study's fastest again: fresh seeds, alone on the device, on the test part.

    `tune-speed certify` as a call. Called again, it resumes where it stopped.

    Args:
        study: in MLflow, by name, or what `search` returned.
        train: the study's training function, where it has one and `study` is a name.
        top: fastest estimates to run again.
        seeds: fresh seeds of each.
        final: how many reach the final.
        final_seeds: fresh seeds of each in it.
        device: only devices whose name contains this.
        address: Ray cluster, as of `search`; None: that of the search.
        again: start over, with other seeds.
        save: file that gets the network of the best recipe, of its run with the best metric on the
            test part, for `predict`.
        progress: as of `search`.
        plugins: as of `search`.

    Raises: ConfigError, DataError, ServiceError, StorageError.
    """
    for name, number in (("top", top), ("seeds", seeds), ("final_seeds", final_seeds)):
        check_least(name, number)
    check_least("final", final, least=0)
    name, folder, searched_on, loop = (
        (study, None, None, None)
        if isinstance(study, str)
        else (study.name, study.folder, study.address, study.loop)
    )
    # On the cluster of the search, unless another one is given.
    address = address or searched_on
    # Before anything that may import Ray, plugins included.
    agree_on_token(address)
    load_plugins(plugins)
    from tune_speed.api.certified import Certified
    from tune_speed.experiments.certification import certify as certification
    from tune_speed.experiments.certification.kept_models import save_best
    from tune_speed.training.saved_model import keep_in

    loop = loop if train is None else packed(train)
    if save is not None:
        if loop is not None:
            must = "must be left out for a training function, which alone has its network"
            hint = "Save it there, after the last `run.evaluated`."
            raise ConfigError.of("save", must, given=str(save), hint=hint)
        keep_in(Path(save))
    found = certification.certify(
        name,
        config=CertifyConfig(top=top, seeds=seeds, final=final, final_seeds=final_seeds),
        folder=folder or studies_folder() / name,
        device=device,
        address=address,
        again=again,
        on_line=Progress.of(progress).line,
        loop=loop,
        keeps_models=save is not None,
    )
    certified = Certified(study=name, result=found)
    # Of records that are disturbed, none is certified; their networks are as good.
    best = certified.best or next(iter(found.records), None)
    if save is None or best is None:
        return certified
    return replace(certified, saved=save_best(found.folder, best, Path(save)))


def search_study(
    study: StudyFile,
    *,
    address: str | None,
    resume: bool,
    from_mlflow: bool,
    download: bool,
    progress: Progress,
) -> Study:
    """Searches, and certifies as the study's file says. Raises: as `tune_speed.search`."""
    start = Start(address, resume, from_mlflow, download)
    result = studies.search(study, start, progress)
    if result.model_line:
        progress.line(result.model_line)
    found = Study(
        name=study.name,
        result=result,
        address=address,
        certify_config=study.certify,
        loop=study.loop,
    )
    # A store that is away costs no trial: the ledger has them, so this is no error.
    if result.undelivered:
        progress.warn(
            f"warning: MLflow at {found.uri} has not taken {names_of(result.undelivered)}"
            f" ({result.undelivered[0].reason}); the ledger in {result.folder} has them, and"
            f" {switch('resume')} delivers them."
        )
    # Before the certification: what the search found is of use while that runs.
    progress.searched(found)
    if study.certify is None or found.was_stopped or found.best is None:
        return found
    # It needs torch, which takes 1.2 s to import: Ray starts before that.
    from tune_speed.api.certified import Certified
    from tune_speed.experiments.certification import certify as certification

    certified = certification.certify(
        study.name,
        config=study.certify,
        folder=result.folder,
        device=None,
        address=address,
        again=False,
        # A search that was resumed may have other finalists than those certified before it.
        anew_if_changed=True,
        on_line=progress.line,
        loop=study.loop,
    )
    return replace(found, certification=Certified(study=study.name, result=certified))
