"""Checkpoints: the file, the chain of files of a run, and what is checked before one is resumed."""
