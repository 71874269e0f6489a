"""What all tests share."""

from __future__ import annotations

import os

# no test asks for more than one thread, and two workers of a test run must not fight for the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")
