"""Resources of the machine: atomic file writes, free memory, free disk space."""
