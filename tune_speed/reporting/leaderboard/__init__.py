"""Leaderboards: rows, ranks and record histories.

`ranking.make_boards` ranks records, `queries.find_boards` those of a store, `history` follows the
record over time. `tables` and `text` say what people read in each form.
"""
