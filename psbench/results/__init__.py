"""Results of runs: records on disk, comparisons, reports."""
