"""Training arithmetic: models, mini-batches, gradients, updates, evaluation. Nothing here decides when."""
