import re

from helpers.reporting.pages import certified, ordinary, trained, viewed

from tune_speed.reporting.page.site import boards_page

EVIL = '"><img src=x onerror=alert(1)><script>alert(1)</script>'


def titles(page: str) -> list[str]:
    return re.findall(r"<h2 id=[^>]*>(.*?)</h2>", page)


def test_each_board_is_a_table_of_its_own_and_certified_stands_first() -> None:
    records = [*ordinary(), certified("t0000", 0.5, 0.6), trained("t0000", device="H200")]
    page = boards_page(viewed(records).boards)
    assert len(re.findall("<table", page)) == 3
    assert ["H200" in title for title in titles(page)] == [True, False, False]
    assert ["certified" in title for title in titles(page)] == [False, True, False]
    assert "Rows are ranked only within one workload" in page
    assert f"tune-speed train {0:032x}" in page
    assert "tune-speed search digits_quickstart" in boards_page([])


def test_names_are_escaped() -> None:
    record = trained(EVIL, study=EVIL, device=EVIL, workload_name=EVIL, params={EVIL: EVIL})
    page = boards_page(viewed([record]).boards)
    assert "<img" not in page
    assert page.count("<script") == 1
