"""First import of the fork server: configures imports and signal handlers.

While it imports, the garbage collector would find nothing. A SIGTERM that is sent to a whole job is for the
process that started the server: without the server that process would take its forks for dead. The forks
themselves are as usual, as other users of Python's fork server end theirs so.
"""

import gc
import os
import signal

gc.disable()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
