"""One optimizer step: batches, gradients, compilation."""
