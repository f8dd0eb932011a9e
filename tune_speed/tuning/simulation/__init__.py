"""Searches in virtual time: the policies of real searches over recorded or synthetic curves."""
