"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# no test asks for more than one thread, and two workers of a test run must not fight for the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

# no test depends on how fast the machine is
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
