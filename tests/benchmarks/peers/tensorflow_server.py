"""TensorFlow's ParameterServerStrategy: one server and two workers, steps scheduled by a coordinator.

Usage: tensorflow_server.py STEPS BATCH SIZES...
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from itertools import pairwise


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def serve() -> None:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    ).join()


def coordinate(steps: int, batch: int, sizes: list[int]) -> float:
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = [
            (tf.Variable(tf.random.normal((a, b), stddev=0.1)), tf.Variable(tf.zeros(b)))
            for a, b in pairwise(sizes)
        ]
        flat = [v for pair in weights for v in pair]
        moments = [tf.Variable(tf.zeros_like(v)) for v in flat]
    x, y = tf.random.normal((1437, sizes[0])), tf.range(1437) % sizes[-1]

    def one() -> None:
        where = tf.random.uniform((batch,), maxval=1437, dtype=tf.int32)
        with tf.GradientTape() as tape:
            h = tf.gather(x, where)
            for i, (w, b) in enumerate(weights):
                h = tf.matmul(h, w) + b
                h = h if i == len(weights) - 1 else tf.nn.relu(h)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.gather(y, where), logits=h)
            )
        for v, m, g in zip(flat, moments, tape.gradient(loss, flat), strict=True):
            m.assign(0.9 * m + g)
            v.assign_sub(0.01 * m)

    @tf.function
    def step() -> None:
        strategy.run(one)

    def go(number: int) -> float:
        began = time.perf_counter()
        for _ in range(number):
            coordinator.schedule(step)
        coordinator.join()
        return time.perf_counter() - began

    go(steps // 5)
    return steps / go(steps)


def main() -> None:
    if len(sys.argv) == 1:
        serve()
        return
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    chief, server, *workers = (f"127.0.0.1:{port}" for port in free_ports(4))
    cluster = {"chief": [chief], "ps": [server], "worker": workers}
    others = []
    for role, index in (("ps", 0), ("worker", 0), ("worker", 1)):
        given = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
        others.append(subprocess.Popen([sys.executable, __file__], env={**os.environ, "TF_CONFIG": given}))
    try:
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
        steps, batch, *sizes = map(int, sys.argv[1:])
        print(coordinate(steps, batch, sizes), flush=True)
    finally:
        for other in others:
            other.kill()
            other.wait()
    os._exit(0)  # the coordinator's threads wait for servers that are gone


if __name__ == "__main__":
    main()
