"""Fresh seeds, alone on the device: how a result is certified."""
