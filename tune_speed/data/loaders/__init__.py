"""From prepared images to batches on the device."""
