"""Imported last by the fork server: what it holds by then is left alone by the garbage collector.

A process that is forked would otherwise look at all objects of torch and Dask at its first full collection,
and write into each of them, which copies the pages that it shares.
"""

import gc

gc.freeze()
gc.enable()
