"""Experiments of the source documents, run again: the paper's figures next to ours.

An experiment is a study file in `search_spaces/replications/`: a recipe, an ablation of it, and
claims, each of which compares a published figure with one of ours.
"""
