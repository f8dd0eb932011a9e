"""Experiments of the source documents, run again: the paper's figures beside ours.

An experiment is a study file in `search_spaces/replications/`: a recipe, an ablation of it, and
what of it stands beside which published figure.
"""
