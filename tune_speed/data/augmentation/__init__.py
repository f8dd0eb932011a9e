"""Random changes to training images: what is drawn, on the host, and what each change does."""
