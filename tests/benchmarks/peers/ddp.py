"""DistributedDataParallel over gloo: two processes on this machine, psbench's own CNN.

Usage: ddp.py STEPS BATCH
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from psbench.models import CNN
from psbench.seeds import Streams


def train(rank: int, steps: int, batch: int, meeting: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    module = CNN().build((1, 28, 28), 10, Streams(0))
    model = nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(3000, 1, 28, 28), torch.arange(3000) % 10
    began = 0.0
    for step in range(steps):
        if step == steps // 5:
            began = time.perf_counter()
        where = torch.randint(0, 3000, (batch,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[where]), y[where]).backward()
        optimizer.step()
    if rank == 0:
        print((steps - steps // 5) / (time.perf_counter() - began), flush=True)
    dist.barrier()  # the number is told, and nobody hangs up on a rank that still trains
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads now and then abort the interpreter's end; errors above still reach mp.spawn


if __name__ == "__main__":
    steps, batch = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (steps, batch, f"{folder}/meeting"), nprocs=2)
