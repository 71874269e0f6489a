"""Last import of the fork server: exempts its objects from garbage collection.

A process that is forked would otherwise look at all objects of torch and Dask at its first full collection,
and write into each of them, which copies the pages that it shares.
"""

import gc

gc.freeze()
gc.enable()
