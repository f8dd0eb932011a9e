"""Trials one by one: table, comparison, export of a recipe."""
