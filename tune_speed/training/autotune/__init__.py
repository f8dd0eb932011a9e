"""What is measured before a run: micro-batch, loader workers, kind of step."""
