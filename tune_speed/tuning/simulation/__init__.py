"""The same policy in virtual time over recorded or made-up learning curves."""
