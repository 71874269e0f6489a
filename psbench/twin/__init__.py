"""A twin of a run: measured, fitted, asked about other strategies, and compared with live runs."""
