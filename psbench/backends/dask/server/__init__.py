"""Parameter stores of a live run: parameter servers, or replicas kept equal by All-Reduce."""
