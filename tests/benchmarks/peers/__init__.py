"""Programs of other frameworks, run as processes of their own; each prints its steps a second."""
