"""A training worker of a live run."""
