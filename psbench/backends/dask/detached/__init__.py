"""Detached runs on Dask: a task directs the run, the scheduler lists it, and readers poll the task's log."""
