"""Rows, ranks, and the board as text, JSON, CSV, Markdown and HTML."""
