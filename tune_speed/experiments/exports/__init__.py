"""Recipes in others' forms: a plain script, a Lightning script, arguments of timm's `train.py`."""
