"""What a run leaves: its record on disk, comparisons, reports."""
