"""Losses, metrics and optimizers."""
