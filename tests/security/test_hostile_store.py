"""Results of a stranger's MLflow server: shown, written and trained, never obeyed."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from helpers.tracking.stores import store_of
from hostile import EVIL, FILE, hostile_record, is_quiet
from typer.testing import CliRunner

from tune_speed.cli.main import app
from tune_speed.core.records import Status
from tune_speed.tracking.reader.queries import Query, find_trials
from tune_speed.tracking.store.store import Store

FORMS = ("table", "csv", "markdown", "json", "html")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = [
        hostile_record("t0000", time_s=1.0),
        hostile_record("t0001", time_s=2.0, finished_at="2026-01-01T00:00:09+00:00"),
        hostile_record(EVIL, time_s=3.0),
        hostile_record("t0003", Status.FAILED),
        hostile_record("t0004", Status.MISSED, study=FILE),
        hostile_record("t0005", time_s=0.5, kind="certified", started_at="2026-01-01"),
    ]
    return store_of(records, folder=tmp_path_factory.mktemp("store"))


@pytest.fixture
def tune_speed(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> "type[Ran]":  # The command, with the stranger's store.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.chdir(tmp_path)
    return Ran


class Ran:
    """A command that was run in this process."""

    def __init__(self, *arguments: str) -> None:
        done = CliRunner().invoke(app, list(arguments))
        self.error = done.exception if not isinstance(done.exception, SystemExit) else None
        self.code, self.out, self.err = done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "studies"),
        ("list", "studies", "--json"),
        ("list", "trials", "--study", EVIL),
        ("list", "trials", "--study", EVIL, "--format", "csv"),
        ("list", "trials", "--study", EVIL, "--format", "markdown"),
        *(("leaderboard", "--misses", "--format", form) for form in FORMS),
        ("leaderboard", "--history"),
        ("leaderboard", "--history", "--format", "markdown"),
        ("best", "--study", EVIL),
        ("watch", EVIL, "--once"),
        ("watch", EVIL, "--once", "--json"),
    ],
    ids=lambda arguments: " ".join(a for a in arguments if a != EVIL),
)
def test_nothing_from_the_store_steers_a_terminal(
    tune_speed: type[Ran], arguments: tuple[str, ...]
) -> None:
    ran = tune_speed(*arguments)
    assert ran.error is None, ran.error
    assert ran.code == 0, ran.err
    assert is_quiet(ran.out) and is_quiet(ran.err)
    assert "alert(1)" in ran.out.replace("\\", "")  # The names were there to be shown.


@pytest.mark.parametrize("command", ["show", "compare"])
@pytest.mark.parametrize("extra", [(), ("--json",)], ids=["table", "json"])
def test_a_trial_is_shown_as_it_is_and_its_markup_does_nothing(
    tune_speed: type[Ran], store: str, command: str, extra: tuple[str, ...]
) -> None:
    ids = [trial.run_id for trial in find_trials(Store(store), Query(study=EVIL))]
    arguments = ids[:1] if command == "show" else ids[:3]
    ran = tune_speed(command, *arguments, *extra)
    assert ran.error is None and ran.code == 0, (ran.error, ran.err)
    assert is_quiet(ran.out) and is_quiet(ran.err)
    if not extra:
        assert "[red]m[/red]" in re.sub(r"\s", "", ran.out.replace("│", ""))
    else:
        assert json.loads(ran.out)


NO_NAMES = ("..", "/etc/passwd", "a" * 5000, "a\x1b[31m/t0000")
# Studies of the names EVIL and FILE are there.
NOT_THERE = [(c, n) for c in ("show", "train", "certify") for n in (EVIL, FILE, *NO_NAMES)]
NOT_THERE += [(c, n) for c in ("report", "watch") for n in NO_NAMES]


@pytest.mark.parametrize(("command", "name"), NOT_THERE)
def test_names_that_are_not_there_are_refused_quietly_and_make_no_file(
    tune_speed: type[Ran], tmp_path: Path, command: str, name: str
) -> None:
    ran = tune_speed(command, name)
    assert ran.code != 0
    assert getattr(ran.error, "exit_code", None) in (2, 4), repr(ran.error)
    assert list(tmp_path.iterdir()) == []


def test_certificates_of_a_study_stay_in_its_folder(tune_speed: type[Ran], tmp_path: Path) -> None:
    """The store has a study of this very name, which would lead out of the folder of studies."""
    ran = tune_speed("certify", FILE)
    assert getattr(ran.error, "exit_code", None) == 2, repr(ran.error)
    assert "study: must match" in str(ran.error)
    assert list(tmp_path.iterdir()) == []


def test_an_exported_recipe_is_one_file_where_it_was_asked_for(
    tune_speed: type[Ran], store: str, tmp_path: Path
) -> None:
    run_id = find_trials(Store(store), Query(study=EVIL))[0].run_id
    ran = tune_speed("show", run_id, "--export", "out.yaml")
    # The text is that of a recipe file or is refused; names of the stranger's decide nothing else.
    if ran.error is None:
        text = (tmp_path / "out.yaml").read_text()
        header = [line for line in text.splitlines() if line.startswith("#")]
        assert all(map(is_quiet, header))
        assert set(yaml.safe_load(text)) == {"study", "workload", "recipe", "run"}
    else:
        assert getattr(ran.error, "exit_code", None) in (2, 4), repr(ran.error)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["out.yaml"])


def test_a_recipe_with_a_strangers_names_is_refused_before_it_trains(
    tune_speed: type[Ran], store: str
) -> None:
    run_id = find_trials(Store(store), Query(study=EVIL))[0].run_id
    ran = tune_speed("train", run_id)
    assert getattr(ran.error, "exit_code", None) == 2, repr(ran.error)
    assert is_quiet(str(ran.error)), str(ran.error)


class Elements(HTMLParser):
    """All elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    handle_startendtag = handle_starttag


@pytest.mark.parametrize("page", ["report", "leaderboard"])
def test_pages_hold_no_element_attribute_or_link_of_the_strangers(
    tune_speed: type[Ran], tmp_path: Path, page: str
) -> None:
    if page == "report":
        ran = tune_speed("report", EVIL, "--html", "page.html", "--png", "figures")
    else:
        ran = tune_speed("leaderboard", "--misses", "--format", "html", "--out", "page.html")
    assert ran.error is None and ran.code == 0, (ran.error, ran.err)
    text = (tmp_path / "page.html").read_text()
    elements = Elements(text).found
    scripts = [attributes for tag, attributes in elements if tag == "script"]
    assert len(scripts) == 1 and text.count("alert(1)") > 5
    assert not any(tag in ("img", "iframe", "object", "base", "form ") for tag, _ in elements)
    for tag, attributes in elements:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("href", "src", "action", "xlink:href"):
            assert re.match(r"#|data:,|https?://|$", attributes.get(name) or ""), attributes
    policy = [a["content"] for t, a in elements if "http-equiv" in a and t == "meta"]
    assert policy and "default-src 'none'" in str(policy[0]) and "unsafe-eval" not in str(policy)
    assert "49" not in re.findall(r"\{\{(.*?)\}\}", text)  # No template within a name is filled.
    assert text.count("{{7*7}}") > 1
    made = {path.name for path in tmp_path.iterdir()}
    assert made <= {"page.html", "figures"}
