"""Execution of one run, and of many: forks, searches, sweeps."""
