"""Mutation runs: small faults are put into the package, and its tests must find them.

`python -m tests.mutation --help` says how; `make nightly` tries another sample every night.
"""
