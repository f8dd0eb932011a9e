"""Folders and files that others may have put in our way, or left behind damaged."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.making import make_record

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.runtime.file_lock import file_lock
from tune_speed.runtime.sharing import Tenancy
from tune_speed.runtime.turnstile import Turnstile, make_shared_folder
from tune_speed.tuning.driver.control import driving
from tune_speed.tuning.driver.ledger import BALLAST_BYTES, Ledger
from tune_speed.tuning.driver.trial_files import BestWeights, trial_file
from tune_speed.tuning.policy.optuna_study import open_storage


def test_the_shared_folder_lets_nobody_remove_anothers_files(tmp_path: Path) -> None:
    make_shared_folder(tmp_path / "shared")
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o1777


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes links of another user")
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    link = tmp_path / "tune_speed-turnstile"
    link.symlink_to(tmp_path / "private")
    os.lchown(link, 12345, 12345)
    with Turnstile.open("gpu", folder=link) as turnstile:
        assert "symbolic link of another user" in str(turnstile.why_not)
    with Tenancy.begin("gpu", study="s", trial="t", folder=link) as tenancy:
        assert "symbolic link of another user" in str(tenancy.why_not)
    assert list((tmp_path / "private").iterdir()) == []


def test_planted_files_of_other_tenants_say_nothing_to_a_terminal(tmp_path: Path) -> None:
    with Tenancy.begin("gpu", study="s", trial="t", folder=tmp_path) as mine:
        evil = "\x1b]0;x\x07\n\u202e"
        with Tenancy.begin("gpu", study=evil, trial="../../etc/passwd", folder=tmp_path):
            (label,) = mine.others()
    assert label.isprintable()
    assert all(path.parent.parent == tmp_path for path in tmp_path.glob("*/*"))


@pytest.mark.parametrize("name", [".bashrc", "profile.sh", "authorized_keys", "a.journal"])
def test_a_study_appends_to_no_file_that_is_not_a_journal(tmp_path: Path, name: str) -> None:
    """A study file names its journal, and a choice in it may be any text."""
    file = tmp_path / name
    file.write_text("# what is the user's\n")
    with pytest.raises(ConfigError, match=r"search\.storage must be a journal"):
        open_storage(str(file))
    assert file.read_text() == "# what is the user's\n"


@pytest.mark.parametrize(
    "name", [".zshrc", "new.desktop", "crontab", "a\0.log", "a" * 300 + ".log"]
)
def test_a_study_makes_no_file_that_something_else_might_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"search\.storage must be a journal"):
        open_storage(str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


def test_a_journal_may_be_new_or_old(tmp_path: Path) -> None:
    import optuna

    place = str(tmp_path / "searches.journal")
    for _ in range(2):
        storage = open_storage(place)
        optuna.create_study(storage=storage, study_name="s", load_if_exists=True)


PROPOSED = {"event": "proposed", "trial_id": "t0000", "params": {"a": 1}, "seed": 0}
FINISHED = {"event": "finished", "record": make_record().model_dump(mode="json")}


def put(line: dict[str, object], **changes: object) -> bytes:
    return json.dumps({**line, **changes}).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        put(PROPOSED, trial_id="../../../etc/passwd"),
        put(PROPOSED, trial_id="t0000\n"),
        put(PROPOSED, trial_id=["t0000"]),
        put(PROPOSED, trial_id=None),
        put(PROPOSED, params=5),
        put(PROPOSED, cost="x" * 50),
        put(FINISHED, record={"study": "s"}),
        put(FINISHED, record={**FINISHED["record"], "trial_id": "/etc/x"}),  # type: ignore[dict-item]
        put(PROPOSED, event="warm_start", study="s", trials=[{"curve": 5}]),
        b"[" * 200_000 + b"\n",
        b'{"event":' * 100_000 + b"\n",
        b'{"event": "proposed", "seed": ' + b"9" * 10_000 + b"}\n",
        b"null\n",
        b"5\n",
        b"\xff\xfe\n",
    ],
)
def test_a_hostile_line_of_a_ledger_is_named_and_nothing_else_happens(
    tmp_path: Path, line: bytes
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "ledger.jsonl").write_bytes(put(PROPOSED) + line)
    with pytest.raises(StorageError, match=r"ledger\.jsonl:2: every line must be an event"):
        Ledger(tmp_path / "s")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-5],
        lambda text: "[" * 100_000,
        lambda text: text.replace('"t0000"', '"t0001"'),
        lambda text: text.replace('"t0000"', '"../../x"'),
        lambda text: "",
        lambda text: "\x00" * 100,
    ],
)
def test_a_hostile_record_of_a_trial_process_becomes_no_result(
    tmp_path: Path, change: Callable[[str], str]
) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / "ledger.jsonl").write_bytes(put(PROPOSED))
    text = make_record("t0000").model_dump_json()
    trial_file(tmp_path, "t0000").write_text(change(text))
    with Ledger(tmp_path) as ledger:
        assert ledger.records == {}
        assert [proposal.trial_id for proposal in ledger.unfinished] == ["t0000"]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_file_in_the_place_of_the_ballast_is_not_written_over(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "notes").write_text("mine")
    link(tmp_path / "notes", tmp_path / "s" / ".ballast")
    with Ledger(tmp_path / "s"):
        assert (tmp_path / "s" / ".ballast").stat().st_size == BALLAST_BYTES
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize("name", ["weights", "trials", "checkpoints", "rebuilt", "ledger.jsonl"])
def test_link_within_a_study_is_named_and_nothing_changes_behind_it(
    tmp_path: Path, name: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in ("t0000.pt", "t0000.json", "photo.png"):
        (elsewhere / file).write_text("mine")
    (tmp_path / "s").mkdir()
    target = elsewhere / "photo.png" if name == "ledger.jsonl" else elsewhere
    (tmp_path / "s" / name).symlink_to(target)
    with pytest.raises(StorageError, match=rf"s/{name} .*it is a link, to {target}"):
        Ledger(tmp_path / "s")
    if name == "weights":
        with pytest.raises(StorageError, match="is a link"):
            BestWeights(tmp_path / "s", [])
    assert {each.read_text() for each in elsewhere.iterdir()} == {"mine"}
    assert len(list(elsewhere.iterdir())) == 3


def test_only_weights_are_removed_from_their_folder(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    for name in ("t0000.pt", "t0001.pt.0a.tmp", "notes.txt"):
        (tmp_path / "weights" / name).touch()
    BestWeights(tmp_path, [])
    assert [each.name for each in (tmp_path / "weights").iterdir()] == ["notes.txt"]


def test_study_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "s").symlink_to(tmp_path / "disk")
    for _ in range(2):
        with Ledger(tmp_path / "s") as ledger:
            if ledger.header is None:
                ledger.begin({"study": "s"})
    assert (tmp_path / "disk" / "ledger.jsonl").stat().st_size


@pytest.mark.parametrize("name", ["driver.lock", ".control.lock"])
def test_lock_that_is_a_link_or_another_kind_of_file_is_refused(tmp_path: Path, name: str) -> None:
    notes = tmp_path / "notes"
    notes.write_text("mine")
    (tmp_path / name).symlink_to(notes)
    hold = driving(tmp_path) if name == "driver.lock" else file_lock(tmp_path / name, wait_s=1)
    with pytest.raises(StorageError, match="it is a link"), hold:
        pytest.fail("a link was followed")
    with pytest.raises(StorageError, match="begins with b'mine'"), file_lock(notes, wait_s=1):
        pytest.fail("a file of another kind was locked")
    assert notes.read_text() == "mine"
