"""MapReduce style on Dask: the driver submits one task graph for every mini-batch.

Partitions stay on their workers; a map task a partition computes its share of the gradient, a tree of tasks
adds the shares up, and the driver, which is the client's process, makes the update. What a worker keeps
between two jobs is its partition and nothing else.
"""
