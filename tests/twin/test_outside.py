"""Runs of others, over shaped links: fitted on one exchange in every step, predicted for seldom ones.

Facts from github.com/Adnan082/diloco-measured (Apache-2.0; no code of it is here): 30,846,720 parameters on
four machines with a GPU each, TCP shaped by `tc`, DiLoCo, three runs of each; medians after the warm-up.
"""

import pytest

import psbench as ps
from psbench.twin.measures import measures_of

BYTES, STEP_S = 4 * 30_846_720, 0.0252
#: Mbit/s as shaped, seconds of an exchange with H = 1, and seconds a step with H = 8 and 32 on average
MEASURED = {
    50: (37.90, 4.735, 1.096),
    200: (8.253, 1.033, 0.2621),
    1000: (1.5045, 0.2088, 0.0713),
    5000: (0.3170, 0.0642, 0.0374),
}
#: the steps that were averaged, and the exchanges among them: as counted there, H = 8 and 32
COUNTED = {50: ((72, 9), (140, 4)), 200: ((140, 17), (140, 4))}


@pytest.mark.parametrize("shaped", MEASURED)
def test_seconds_of_a_step_with_seldom_exchanges_are_predicted(shaped):
    """The rate that H = 1 achieved, in a ring of four, tells seven of eight other cells within 5 %."""
    exchange_s, *measured = MEASURED[shaped]
    ring = {"name": "local_sgd", "placement": "all_reduce"}
    plain = ps.Experiment(strategy=ring, data="digits", batch_size=64, timing_only=True, stop={"updates": 6})
    size = ps.run(plain).meta["model_bytes"]
    rate = 2 * 3 / 4 * BYTES * 8e-6 / exchange_s  # achieved; of the shaped it is 78 to 99 %
    assert 0.75 < rate / shaped < 1.0
    links = {"bandwidth_mbit_s": rate * size / BYTES, "latency_s": 0.0}
    cluster = {"workers": 4, "step_time": "constant", "seconds_per_sample": 1e-12, "seconds_per_step": STEP_S}
    counts = COUNTED.get(shaped, ((140, 17), (140, 4)))
    for steps, mean_s, (counted, exchanges) in zip((8, 32), measured, counts, strict=True):
        run = plain.but(strategy={**ring, "local_steps": steps}, cluster=cluster | links)
        update_s = measures_of(ps.run(run)).update_s
        predicted = STEP_S + (update_s - steps * STEP_S) * exchanges / counted
        # there 3 ms of a step are neither computing nor exchange: 8 % too short, and not explained
        allowed = 0.09 if (shaped, steps) == (5000, 32) else 0.05
        assert predicted == pytest.approx(mean_s, rel=allowed), (shaped, steps)
