"""Speed, measured side by side: `python -m tests.benchmarks` lists the rows and runs them all.

`python -m tests.benchmarks NAME ...` runs some of them, `--list` only names them. Each row runs both of its
sides in turns in the same call and compares their medians, so that a machine that is busy or slow is so for
both. The figures to reach are those of the project's design; none of this is part of `make test`, because a
timed test fails on somebody else's machine.

Ray and TensorFlow are wanted by one row only and never by the package (`pip install psbench[bench]`). To
keep them out of this environment, name the Python of another one with `--peer-python`, or in the
environment variable `PSBENCH_PEER_PYTHON`. A peer that is not installed there is left out; its row says so.
"""
