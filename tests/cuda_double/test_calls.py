"""The list of calls of torch.cuda is that of the package as it is."""

from cuda_double.calls import TABLE, calls


def test_each_call_is_listed_with_what_reaches_it() -> None:
    rows = [line.split(" | ") for line in TABLE.read_text().splitlines() if "| `" in line]
    listed = {tuple(cell.strip("|` ") for cell in row[:3]) for row in rows}
    there = {tuple(call) for call in calls()}
    assert listed == there, "python tests/cuda_double/calls.py writes the list"
    assert all(len(row) == 4 and row[3].strip("| ") for row in rows)
