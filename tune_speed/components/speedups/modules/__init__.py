"""What the speed-ups do inside a training, which needs torch."""
