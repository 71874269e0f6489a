"""Losses, metrics and optimizers: what a run minimises, what it reports, and how a step is taken."""
