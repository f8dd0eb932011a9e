"""Searches that come to a good end, whether or not they met their target."""

from pathlib import Path

from faulty_runs import Search, assert_unlocked, searching


def search_to_its_end(folder: Path, *arguments: str, **variables: str) -> Search:
    """Returns the search that ended: it warned of nothing, and left no process and no lock."""
    with searching(folder, "tiny.yaml", *arguments, **variables) as search:
        assert search.wait(within_s=450) in (0, 1), search.err
        assert "Traceback" not in search.err and "warning" not in search.err, search.err
        assert search.left_after(30) == []
        assert_unlocked(folder)
        return search
