"""Checks whether a study may be searched: its data, name and place. Begins its ledger."""

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tune_speed.components.metrics.base import guesses
from tune_speed.components.plugins import registry
from tune_speed.core.config import flatten
from tune_speed.core.errors import ConfigError, StorageError, writing
from tune_speed.core.folders import studies_folder
from tune_speed.core.prices import own_prices
from tune_speed.core.records import PROTOCOL_VERSION
from tune_speed.core.redact import redact
from tune_speed.core.renamed import LEFT_TARGET
from tune_speed.core.targets import Target
from tune_speed.core.text import counted, option, setting, switch
from tune_speed.core.version import __version__
from tune_speed.data.cache import prepare
from tune_speed.data.split import in_words, make_splits
from tune_speed.runtime.atomic_file import replace_text
from tune_speed.study.file import StudyFile
from tune_speed.study.mistake import left_mistakes
from tune_speed.study.yaml import dump_yaml, read_yaml
from tune_speed.tracking.reader.queries import find_search
from tune_speed.tracking.store.store import Store
from tune_speed.training.workload import Workload
from tune_speed.tuning.driver.ledger import Ledger, advice
from tune_speed.tuning.driver.requests import Set, accepted

# Part of every path in a job's working directory. Ray deletes it some time after the job.
WORKING_DIRS = "/runtime_resources/working_dir_files/"

STUDY_FILE = "study.yaml"
Say = Callable[[str], None]
OnProgress = Callable[[int, int], None]
"""Takes how many of all images are decoded."""
MIN_FREE_MIB = 200
"""A study whose disk has less is not begun."""


class Start(NamedTuple):
    """How a search is begun."""

    address: str | None = None
    """Of a Ray cluster; None: a local one is started."""
    resume: bool = False
    from_mlflow: bool = False
    download: bool = False


class Admitted(NamedTuple):
    """A study that may be searched, as far as its file, data and place say."""

    study: StudyFile
    folder: Path
    store: Store
    workload_hash: str
    """Of the workload with its data."""
    data: "PreparedWorkload | None"
    """None: a training function has data of its own."""


def admitted(study: StudyFile, start: Start, say: Say, on_progress: OnProgress) -> Admitted:
    """Prepares data and place. Raises: ConfigError, DataError, ServiceError, StorageError."""
    study = replace(study, workload=study.workload.located())
    own_prices()  # Refuses a file that boards could not read.
    folder, store = studies_folder() / study.name, Store()
    _refuse_full_disk(folder)
    refuse_throw_away(folder, store)
    data = None
    if isinstance(study.workload, Workload):
        data = prepare_workload(study.workload, download=start.download, on_progress=on_progress)
        workload_hash = data.workload_hash
        for line in data.lines:
            say(line)
    else:
        workload_hash = study.workload.identity()
    found = Admitted(study, folder, store, workload_hash, data)
    if start.from_mlflow:
        number = rebuild(found)
        say(f"rebuilt the ledger from MLflow: {counted(number, 'finished trial')}")
    return found


def _refuse_full_disk(folder: Path) -> None:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free_mib = shutil.disk_usage(existing).free / 2**20
    if free_mib < MIN_FREE_MIB:
        raise StorageError(
            f"{existing} must have {MIN_FREE_MIB} MiB free for a study, but got {free_mib:.0f} MiB."
            " Free some space, or set TUNE_SPEED_STUDIES to another folder."
        )


def admit(ledger: Ledger, admitted: Admitted, *, resume: bool) -> None:
    """Raises a ConfigError if the study's name is taken by another search, or by a finished one."""
    study, workload_hash, go_on = admitted.study, admitted.workload_hash, switch("resume")
    if ledger.header is None:
        if ledger.proposals:
            raise StorageError(
                f"{ledger.folder}/ledger.jsonl:1: a ledger's first event must be `study`, but it"
                f" has none. Put the line back, or {advice().damaged}."
            )
        if resume:
            raise ConfigError(
                f"{go_on} needs a study that was begun, but the ledger of {study.name} in"
                f" {ledger.folder} is empty. Leave {go_on} out to begin it, or, where MLflow has"
                f" its trials, rebuild it with {go_on} {switch('from-mlflow')}."
            )
        return
    place, folder = str(ledger.folder), ledger.folder
    _refuse_left(ledger, study.name)
    _refuse_other(ledger.header, study, workload_hash=workload_hash, place=place, folder=folder)
    if not resume and ledger.proposals:
        raise ConfigError(
            f"study {study.name} exists, with {counted(len(ledger.records), 'finished trial')}"
            f" ({ledger.folder}). Go on with {go_on} (and {option('trials')} for more), or begin"
            f" another with {setting('study', 'NAME')}."
        )
    refuse_changed_plugins(ledger, name=study.name)


def rebuild(admitted: Admitted) -> int:
    """Rebuilds a lost ledger, whole or not at all; returns how many trials. Raises: ConfigError."""
    study, folder = admitted.study, admitted.folder
    with Ledger(folder) as lost:
        if lost.proposals:
            raise ConfigError(
                f"{switch('from-mlflow')} rebuilds a ledger that was lost, but that of {study.name}"
                f" is there, with {counted(len(lost.records), 'finished trial')} (in {folder})."
                " Leave it out."
            )
        found = find_search(admitted.store, study.name)
        header = found.header | {"study": study.name, "tune_speed": __version__}
        place = f"run {found.run_id}"
        _refuse_other(
            header, study, workload_hash=admitted.workload_hash, place=place, folder=folder
        )
        whole = folder / "rebuilt"
        shutil.rmtree(whole, ignore_errors=True)  # Of a rebuilding that was stopped.
        with Ledger(whole) as ledger:
            ledger.begin(header)
            for record in found.records:
                ledger.take_over(record)
        _write_study(folder, study)
        with writing(folder / "ledger.jsonl"):
            (whole / "ledger.jsonl").replace(folder / "ledger.jsonl")
        shutil.rmtree(whole, ignore_errors=True)
    return len(found.records)


def _refuse_left(ledger: Ledger, name: str) -> None:
    whys = [
        f"its target was changed by hand ({request.words}, {answer.at}). {LEFT_TARGET}"
        for request, answer in accepted(ledger.answers.values(), Set)
        if "target" in request.changes
    ]
    with suppress(ConfigError):  # A file that cannot be read hinders no study that is unchanged.
        begun = read_yaml(ledger.folder / "study.yaml")
        whys += [str(mistake.problem(begun)) for mistake in left_mistakes(begun)]
    for why in whys:
        raise ConfigError(
            f"study {name} cannot go on: {why} Its trials may be learned from: begin another with"
            f" {setting('study', 'NAME')} {setting('search.warm_start', f'[{name}]')}."
        )


def _refuse_other(
    header: Mapping[str, Any], study: StudyFile, *, workload_hash: str, place: str, folder: Path
) -> None:
    same = {"space_hash": study.space.hash, "workload_hash": workload_hash}
    for what, ours in {"study": study.name, **same, "protocol_version": PROTOCOL_VERSION}.items():
        theirs = header.get(what)
        if theirs == ours:
            continue
        if what == "protocol_version":
            raise ConfigError(
                f"study {study.name} must go on with the measuring rules that it began with, but"
                f" this is tune_speed {__version__} with protocol {ours}, and its ledger is of"
                f" tune_speed {header.get('tune_speed')} with protocol {theirs} ({place}): their"
                " times do not compare. Begin another with"
                f" {setting('study', 'NAME')}, or install that version."
            )
        names = {"study": "name", "space_hash": "search space", "workload_hash": "workload"}
        name = names[what]
        section = "recipe" if what == "space_hash" else "workload"
        known = "" if what == "study" else _changes(study, section, folder)
        changes = known or f"its {'name' if what == 'study' else 'hash'} was {theirs} and is {ours}"
        raise ConfigError(
            f"study {study.name} must keep its {name}, but {changes} ({place}). Give this one"
            f" another name with {setting('study', 'NAME')}, or put it back as it was."
        )


def _changes(study: StudyFile, section: str, folder: Path) -> str:
    try:
        begun = read_yaml(folder / STUDY_FILE).tree[section]
    except (ConfigError, KeyError, TypeError):
        return ""
    before, now = (flatten(tree) for tree in ({section: begun}, {section: study.tree[section]}))
    fields = [name for name in before | now if before.get(name, ...) != now.get(name, ...)]
    if fields:
        return f"these fields changed: {', '.join(fields)}"
    of_workload = "its data changed" if study.loop is None else "the training function changed"
    return of_workload if section == "workload" else ""


def refuse_changed_plugins(ledger: Ledger, *, name: str) -> None:
    # Otherwise times of two different networks would be compared.
    here = registry.hashes()
    for record in ledger.records.values():
        for title, theirs in record.plugins.items():
            if here.get(title) != theirs:
                ours = here.get(title, "not loaded")
                raise ConfigError(
                    f"study {name} must keep its plugins, but {record.trial_id} ran {title} with"
                    f" source {theirs}, and now it is {ours}. Begin another study with"
                    f" {setting('study', 'NAME')}, or put the plugin back as it was."
                )


def pinned_device(ledger: Ledger) -> str | None:
    """Returns the type of device that a study has run on; None: its name is not known yet."""
    if ledger.header is not None and ledger.header.get("device_type"):
        return str(ledger.header["device_type"])
    devices = Counter(str(r.device.one) for r in ledger.records.values() if r.device.type)
    return devices.most_common(1)[0][0] if devices else None


def begin(
    ledger: Ledger, study: StudyFile, workload_hash: str, *, device_type: str | None = None
) -> str:
    """Writes header and study file where there are none yet; returns the search's own id."""
    # Searches may share a name in MLflow but not a ledger: the id tells them apart.
    if ledger.header is not None:
        # A driver may be killed between the two, and requests to a search read the file.
        if not (ledger.folder / STUDY_FILE).is_file():
            _write_study(ledger.folder, study)
        return str(ledger.header["search_id"])
    search_id = uuid.uuid4().hex
    header = {
        "study": study.name,
        "search_id": search_id,
        "space_hash": study.space.hash,
        "workload_hash": workload_hash,
        "device_type": device_type,
        "protocol_version": PROTOCOL_VERSION,
        "tune_speed": __version__,
    }
    ledger.begin(header)
    _write_study(ledger.folder, study)
    return search_id


def _write_study(folder: Path, study: StudyFile) -> None:
    replace_text(folder / STUDY_FILE, redact(dump_yaml(study.tree)))


def refuse_throw_away(folder: Path, store: Store) -> None:
    """Raises a ConfigError if a study's files or results would be deleted with a Ray job."""
    places = {"TUNE_SPEED_STUDIES": str(folder), "MLFLOW_TRACKING_URI": store.uri}
    lost = [name for name, place in places.items() if WORKING_DIRS in place]
    if lost:
        raise ConfigError(
            "a search in a Ray job must keep its results outside of the job's working directory,"
            f" which Ray deletes later, but got {' and '.join(places[name] for name in lost)}. Set"
            f' {" and ".join(lost)}: ray job submit --runtime-env-json \'{{"env_vars":'
            ' {"TUNE_SPEED_STUDIES": "/a/shared/folder", "MLFLOW_TRACKING_URI":'
            ' "http://HOST:PORT"}}\' …'
        )


class PreparedWorkload(NamedTuple):
    """Facts about a workload that need its data."""

    workload_hash: str
    data_hash: str
    image_shape: tuple[int, ...]
    """Of the stored images, (H, W, C)."""
    num_classes: int
    num_train: int
    lines: tuple[str, ...]
    """What was found, in words."""
    are_several: bool = False
    """Whether an image may be of several classes."""


def prepare_workload(
    workload: Workload, *, download: bool, on_progress: OnProgress
) -> PreparedWorkload:
    """Decodes data into the node's cache. Raises: DataError; ConfigError if a guess is enough."""
    data = prepare(workload.dataset, download=download, on_progress=on_progress)
    splits = make_splits(data, workload.split)
    prepared = PreparedWorkload(
        workload_hash=workload.identity(data_hash=data.data_hash),
        data_hash=data.data_hash,
        image_shape=splits.train.pixels.shape[1:],
        num_classes=splits.num_classes,
        num_train=len(splits.train.labels),
        lines=(*in_words(splits, data.class_names), *data.notes, *workload.dataset.notes()),
        are_several=splits.train.labels.ndim == 2,
    )
    _refuse_guess(workload.target, guesses(splits.validation.labels, splits.num_classes))
    return prepared


def _refuse_guess(target: Target, known: dict[str, float]) -> None:
    guess = known.get(target.metric)
    if guess is None or target.value > guess or target.seeks_best:
        return
    raise ConfigError.of(
        "workload.target.value",
        f"must exceed {guess:.4f}, the {target.metric} of always guessing the most frequent class",
        given=f"{target.value:g}",
        hint="Such a target is met before training; choose a higher one.",
    )
