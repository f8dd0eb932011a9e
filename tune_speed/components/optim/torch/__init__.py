"""The optimizers themselves, which need torch."""
