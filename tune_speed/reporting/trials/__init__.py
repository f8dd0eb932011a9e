"""Trials one by one: side by side, in words, and as recipes to train again."""
