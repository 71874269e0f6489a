"""Damaged files are refused with an error that names them, or read, in bounded time and memory.

Each is a whole file with a few faults: bits, cuts, repeated parts, and numbers that become huge. A small
sample runs with the other tests; the long one, at night, reads each kind in a process of its own, where no
file may take ten seconds, nor much more memory than those before.
"""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import signal
import struct
import sys
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile import changed

from psbench.clusters.trace import Trace
from psbench.data import CSV, MNIST, Folder, Parquet, Text
from psbench.errors import PsbenchError
from psbench.seeds import Streams

ROWS = 60
#: bytes of memory that reading a small file may take more than the reading before it
MEMORY = 300_000_000
SECONDS = 10

FRAME = pd.DataFrame(
    {
        "user": 20230001 + np.arange(ROWS) % 7,
        "a": np.arange(ROWS) / 7,
        "site": np.array(["north", "south"])[np.arange(ROWS) % 2],
        "label": np.arange(ROWS) % 3,
    }
)
STEPS = pd.DataFrame({"worker": np.arange(ROWS) % 3, "seconds": 1 + np.arange(ROWS) / 7})
OPTIONS = {"target": "label", "keep": ["user", "site"]}


def parquet(**options) -> Callable[[Path], None]:
    def write(path):
        pq.write_table(pa.Table.from_pandas(FRAME), path, row_group_size=ROWS // 2, **options)

    return write


def idx(path: Path) -> None:
    content = struct.pack(">BBBB3I", 0, 0, 8, 3, 5, 4, 4) + bytes(range(80))
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def load_mnist(path: Path, home: Path) -> None:
    raw = home / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        idx(raw / f"{part}-images-idx3-ubyte")
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">BBBBI", 0, 0, 8, 1, 5) + bytes(range(5))
        )
    (raw / "train-images-idx3-ubyte").unlink()
    shutil.copy(path, raw / f"train-images-idx3-ubyte{path.suffix}")
    MNIST(root=str(home)).load(Streams(0))


def load_cache(name: str) -> Callable[[Path, Path], None]:
    """Return a reader of a table whose cache has one file of what is to be read."""

    def load(path, home):
        FRAME.to_csv(home / "table.csv", index=False)
        os.utime(home / "table.csv", (1, 1))
        source = CSV(path=str(home / "table.csv"), cache=str(home / "cache"), **OPTIONS)
        expected = source.load(Streams(0)).train_y.tolist()
        (cached,) = (home / "cache" / "csv").iterdir()
        shutil.copy(path, cached / name)
        found = source.load(Streams(0))
        assert len(found.train_y) in range(1, ROWS + 1)
        assert set(found.train_y.tolist()) <= set(expected) | {0, 1, 2}

    return load


def write_cache(name: str) -> Callable[[Path], None]:
    def write(path):
        home = path.with_suffix(".home")
        home.mkdir()
        FRAME.to_csv(home / "table.csv", index=False)
        CSV(path=str(home / "table.csv"), cache=str(home), **OPTIONS).load(Streams(0))
        shutil.copy(next((home / "csv").rglob(name)), path)

    return write


def image(path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(path)


def load_image(path: Path, home: Path) -> None:
    for name in ("a", "b"):
        (home / "images" / name).mkdir(parents=True)
        shutil.copy(path, home / "images" / name / f"one{path.suffix}")
    Folder(path=str(home / "images"), val_fraction=0).load(Streams(0))


def load_times(path: Path, home: Path) -> None:
    Trace(path=str(path)).begin(3)


def load_table(kind: type[CSV] | type[Parquet]) -> Callable[[Path, Path], None]:
    return lambda path, home: kind(path=str(path), cache=str(home / "cache"), **OPTIONS).load(Streams(0))


#: by name: how a file is called, written and read
KINDS: dict[str, tuple[str, Callable[[Path], None], Callable[[Path, Path], None]]] = {
    "csv": ("f.csv", lambda path: FRAME.to_csv(path, index=False), load_table(CSV)),
    "parquet": ("f.parquet", parquet(compression="none", use_dictionary=False), load_table(Parquet)),
    "snappy": ("f.parquet", parquet(), load_table(Parquet)),
    "zstd": ("f.parquet", parquet(compression="zstd", data_page_version="2.0"), load_table(Parquet)),
    "gzip": ("f.parquet", parquet(compression="gzip", use_byte_stream_split=["a"],
                                  use_dictionary=["user"]), load_table(Parquet)),
    "idx": ("f", idx, load_mnist),
    "idx.gz": ("f.gz", idx, load_mnist),
    "features": ("features.npy", write_cache("features.npy"), load_cache("features.npy")),
    "targets": ("targets.npy", write_cache("targets.npy"), load_cache("targets.npy")),
    "about": ("about.json", write_cache("about.json"), load_cache("about.json")),
    "times": ("f.csv", lambda path: STEPS.to_csv(path, index=False), load_times),
    "times.parquet": ("f.parquet", lambda path: STEPS.to_parquet(path), load_times),
    "png": ("f.png", image, load_image),
    "gif": ("f.gif", image, load_image),
    "text": ("f.txt", lambda path: path.write_text("a text, é, " * 20), lambda path, home: Text(
        path=str(path), context=4).load(Streams(0))),
}  # fmt: skip


def try_files(kind: str, home: Path, seed: int, count: int, seconds: int = 0) -> int:
    """Read changed files of a kind; return the number refused. A file with any other error is left there."""
    name, write, load = KINDS[kind]
    home.mkdir()
    whole = home / f"whole-{name}"
    write(whole)
    content, refused = whole.read_bytes(), 0
    (home / "whole").mkdir()
    load(whole, home / "whole")  # what libraries take is taken now
    rng = np.random.default_rng([seed, *kind.encode()])
    for number in range(count):
        with_faults = home / str(number)
        with_faults.mkdir()
        (with_faults / name).write_bytes(changed(content, rng))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.alarm(seconds)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(with_faults / name, with_faults)
        except PsbenchError as error:
            refused += 1
            message = str(error)
            assert "\n" not in message, message
            assert str(with_faults) in message or "data '" in message, message
        finally:
            signal.alarm(0)
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert more * 1024 < MEMORY, f"{with_faults / name} takes {more / 1024} MB"
        shutil.rmtree(with_faults)
    return refused


@pytest.mark.by_day(8)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_refused_or_read(tmp_path, kind):
    refused = try_files(kind, tmp_path / "tried", 0, 12)
    # caches are made again
    assert (refused > 0) != (kind in ("features", "targets", "about"))


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units")
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files(tmp_path, kind):
    """A process of its own dies of a crash or of the alarm, and its last file is there to be looked at."""
    seed = int(os.environ.get("PSBENCH_FUZZ_SEED", "1"))
    count = int(os.environ.get("PSBENCH_FUZZ_FILES", "1500"))
    process = get_context("spawn").Process(
        target=try_files, args=(kind, tmp_path / "tried", seed, count, SECONDS)
    )
    process.start()
    process.join()
    assert process.exitcode == 0, f"seed {seed}: {list((tmp_path / 'tried').iterdir())}"


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_a_small_file_with_many_rows_is_read_in_pieces(tmp_path, compression, monkeypatch):
    """One row group of 500,000 rows, in a few kB: no array that is made has more than a block's numbers."""
    from psbench.data import blocks

    count = 500_000
    columns = {name: np.zeros(count, np.int8) for name in "abc"} | {"label": np.arange(count) % 2 == 0}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=count, compression=compression)
    assert (tmp_path / "t.parquet").stat().st_size < 50_000
    seen = []
    usual = blocks._numeric
    monkeypatch.setattr(blocks, "_numeric", lambda column: seen.append(len(column)) or usual(column))
    given = {"target": "label", "block_size": 1_000_000, "cache": str(tmp_path)}
    data = Parquet(path=str(tmp_path / "t.parquet"), **given).load(Streams(0))
    assert len(data.train_y) + len(data.val_y) == count
    assert max(seen) <= 1_000_000 // (8 * 4)


def test_what_metadata_says_is_checked_before_it_is_read(tmp_path, monkeypatch):
    parquet()(tmp_path / "t.parquet")
    monkeypatch.setattr("psbench.system.limits.available_memory", lambda: 100)
    with pytest.raises(PsbenchError, match=r"largest row group would need about .* bytes"):
        load_table(Parquet)(tmp_path / "t.parquet", tmp_path)
