"""Training arithmetic: models, mini-batches, gradients, updates, evaluation; without control flow or time."""
