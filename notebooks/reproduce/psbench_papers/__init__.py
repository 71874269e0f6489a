"""Published claims as data, the experiments that test them, and a verdict on each claim.

A paper is a folder with three files: `published.csv` has the printed numbers with their places in the paper,
`claims.yaml` says in sentences what they are to show, and by which test, and `experiments.yaml` has the
specifications and how each machine became a number.
"""
