import re

import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.replication import shipped
from tune_speed.experiments.replication.shipped import find, replication_listing

FILE = """\
replication:
  items: {items}
  title: Title of {name}.
  question: Does it?
  source: S3
  parts: {{a: {{}}, b: {{}}}}
  claims:
    - {{says: So., ours: {{arm: x=1, figure: speed_up}}, paper: 2, source: "S3, text"}}
scale: {{cpu: {{about: Smaller.}}}}
"""
ITEMS = {"workers": [111], "factorial": [105], "pinned": [103, 110], "again": [105], "other": []}


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, items in ITEMS.items():
        (tmp_path / f"{name}.yaml").write_text(FILE.format(items=items, name=name))
    found = {path.stem: path for path in sorted(tmp_path.glob("*.yaml"))}
    monkeypatch.setattr(shipped, "shipped_replications", lambda: found)
    return found


def test_listing_is_in_the_order_of_the_items(files):
    rows = replication_listing()
    assert [row["name"] for row in rows] == ["pinned", "again", "factorial", "workers", "other"]
    assert rows[0] == {
        "name": "pinned",
        "items": [103, 110],
        "title": "Title of pinned.",
        "question": "Does it?",
        "source": "S3",
        "parts": ["a", "b"],
        "profiles": ["full", "cpu"],
    }


def test_replication_is_found_by_name_by_item_and_by_path(files, tmp_path):
    assert find("pinned") == find("110") == find(str(files["pinned"])) == files["pinned"]


REFUSED = {
    "pined": "Did you mean `pinned`?",
    "112": "There are 103, 105, 110, 111.",
    "105": "Several are of experiment 105: again, factorial.",
    "nothing like it": "There are again, factorial, other, pinned, workers.",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_is_refused_with_what_is(files, name):
    with pytest.raises(ConfigError) as caught:
        find(name)
    assert REFUSED[name] in str(caught.value)


def test_file_that_is_no_replication_is_named_with_the_command_for_others(files):
    files["other"].write_text("workload: digits\n")
    must = r"other\.yaml: replication: must be given in the file.*`tune-speed ablate .*other\.yaml`"
    with pytest.raises(ConfigError, match=re.compile(must, re.S)):
        replication_listing()
