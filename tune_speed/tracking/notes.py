"""What people change on record: notes and stars of trials, a study that goes to the trash."""

from datetime import UTC, datetime
from typing import Any, NamedTuple

from tune_speed.core.errors import ConfigError
from tune_speed.tracking import schema
from tune_speed.tracking.reader.changes import experiments_of
from tune_speed.tracking.reader.queries import find_trial
from tune_speed.tracking.store.store import Store

NOTE, STAR = f"{schema.PREFIX}note.", f"{schema.PREFIX}star."
"""Begin tags of a study's experiment that end in `trial_key`."""
MOST_CHARACTERS = 2000


class Note(NamedTuple):
    """What was said of a trial."""

    text: str = ""
    starred: bool = False

    def __str__(self) -> str:
        return " ".join(filter(None, ("★" if self.starred else "", self.text)))


NO_NOTE = Note()


def trial_key(trial_id: str, kind: str) -> str:
    """Returns `t0007`, or `t0007.certified` for the certified runs of the same configuration."""
    return trial_id if kind == "estimate" else f"{trial_id}.{kind}"


def notes_of(store: Store, experiment_id: str) -> dict[str, Note]:
    """Returns the notes by `trial_key` of the study with this id. Raises: ServiceError."""
    tags = store.call(lambda client: client.get_experiment(experiment_id)).tags
    keys = {name.removeprefix(p) for name in tags for p in (NOTE, STAR) if name.startswith(p)}
    notes = {k: Note(tags.get(NOTE + k, ""), bool(tags.get(STAR + k))) for k in sorted(keys)}
    return {key: note for key, note in notes.items() if note != NO_NOTE}


def read_notes(store: Store, study: str) -> dict[str, Note]:
    """Returns a study's notes by `trial_key`. Raises: ServiceError, ConfigError without study."""
    (experiment_id,) = experiments_of(store, study)
    return notes_of(store, experiment_id)


def write_note(
    store: Store, trial: str, *, text: str | None, star: bool | None
) -> tuple[str, Note]:
    """Changes what is said of a trial (None: as it was); returns it as `study/trial` with its note.

    Raises: ConfigError if there is no such trial or the text is too long; ServiceError.
    """
    if text is not None and len(text) > MOST_CHARACTERS:
        must = f"must have at most {MOST_CHARACTERS:,} characters"
        raise ConfigError.of("note", must, given=f"{len(text):,}")
    found = find_trial(store, trial)
    key = trial_key(found.record.trial_id, found.record.kind)
    # An empty tag: older servers cannot remove one of an experiment.
    tags = {} if star is None else {STAR + key: "yes" if star else ""}
    if text is not None:
        tags[NOTE + key] = schema.clean(text, limit=MOST_CHARACTERS)

    def write(client: Any) -> None:
        for name, value in tags.items():
            client.set_experiment_tag(found.experiment_id, name, value)

    store.call(write)
    return found.name, notes_of(store, found.experiment_id).get(key, NO_NOTE)


def discard_study(store: Store, experiment_id: str, study: str) -> str:
    """Moves a study to MLflow's trash, from where `mlflow experiments restore` brings it back.

    Returns its name there. Raises: ServiceError if the store does not answer.
    """
    # MLflow keeps the names of what is in its trash taken.
    name = f"{study} (deleted {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ})"
    store.call(lambda client: client.rename_experiment(experiment_id, name))
    store.call(lambda client: client.delete_experiment(experiment_id))
    return name
