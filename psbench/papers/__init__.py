"""Published results as data, the experiments that repeat them, and the verdict on each row.

A paper is a folder with two files: `published.csv` has the printed numbers with their places in the paper,
and `experiments.yaml` the specifications, how each machine became a number, and notes.
"""
