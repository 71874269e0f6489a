"""Checkpoints: the file, the chain of a run's files, and validation before a run is resumed."""
