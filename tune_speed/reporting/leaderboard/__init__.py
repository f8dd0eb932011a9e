"""Leaderboards: rows, ranks and record histories."""
