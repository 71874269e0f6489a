"""What is needed of other libraries' insides is there, and does what it is needed for."""

from __future__ import annotations

import inspect
import multiprocessing.spawn
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import altair as alt
import dask
import distributed.utils
import jsonschema
import pytest
import tornado.netutil
import typer
from altair.utils import schemapi
from distributed import LocalCluster, Scheduler, Worker

from psbench.backends.dask.lifetime import LOST
from psbench.system import private_apis


def test_a_process_is_not_given_the_script_again(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")  # a process of pytest-xdist runs none
    script.__file__ = "/a/script.py"
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert multiprocessing.spawn.get_preparation_data("outside").keys() & {
        "init_main_from_path",
        "init_main_from_name",
    }
    with private_apis.without_main():
        given = multiprocessing.spawn.get_preparation_data("inside")
    assert not given.keys() & {"init_main_from_path", "init_main_from_name"}
    assert sys.modules["__main__"] is script


def test_dask_takes_the_word_that_imports_are_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed.utils, "_forkserver_preload_set", False)
    private_apis.keep_preloaded()
    context, asked = SimpleNamespace(), list[Any]()
    context.set_forkserver_preload = asked.append
    monkeypatch.setattr(distributed.utils.multiprocessing, "get_context", lambda method: context)
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        assert distributed.utils.get_mp_context() is context
    assert not asked


def test_a_cluster_waits_for_a_lost_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    name = "distributed.deploy.lost-worker-timeout"
    assert name.rpartition(".")[2] in inspect.getsource(LocalCluster._update_worker_status)
    monkeypatch.setattr(
        LocalCluster, "_update_worker_status", lambda self, op, msg: seen.append(dask.config.get(name))
    )
    cluster: Any = object.__new__(private_apis.patient_cluster(7.0))
    cluster._update_worker_status("remove", "tcp://127.0.0.1:1")
    assert seen == ["7.0s"]
    assert dask.config.get(name) != "7.0s"


def test_dask_closes_a_worker_by_the_method_of_the_object() -> None:
    worker: Any = SimpleNamespace(close=lambda reason: f"closed: {reason}", stream_handlers={})
    private_apis.replace_close(worker, lambda close: lambda **options: "later, " + close(**options))
    for close in (worker.close, worker.stream_handlers["close"]):
        assert close(reason="lost") == "later, closed: lost"
    source = inspect.getsource(Worker) + inspect.getsource(Scheduler)
    for needed in ("self.close(", '"close": self.close,', *map(repr, LOST)):
        assert needed.replace("'", '"') in source


def test_certificates_are_kept_by_who_looks_them_up() -> None:
    private_apis.look_up_certificates()
    found = tornado.netutil._client_ssl_defaults
    assert not callable(found) or found() is found()


def test_a_wrong_usage_has_what_is_said_of_it() -> None:
    kind = private_apis.wrong_usage()
    assert issubclass(typer.BadParameter, kind)
    assert kind not in (Exception, BaseException)
    error: Any = typer.BadParameter("not so")
    assert "not so" in error.format_message()
    assert error.ctx is None


def test_parts_of_charts_are_checked_again_when_the_last_block_has_ended() -> None:
    rows = [{"x": 1.0}, "no row"]
    with schemapi.debug_mode(True):
        first, second = private_apis.unchecked(), private_apis.unchecked()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        alt.InlineData(values=rows)
        second.__exit__(None, None, None)
        with pytest.raises(jsonschema.ValidationError):
            alt.InlineData(values=rows)


def test_rows_of_charts_are_neither_checked_one_by_one_nor_copied() -> None:
    rows = [{"x": 1.0}, "no row"]
    chart = alt.Chart(private_apis.unchecked_rows()(values=rows)).mark_line().encode(x="x:Q")
    both = alt.vconcat(chart, chart).resolve_scale(x="independent")
    assert both.data.values is rows
    # two threads that draw at once may have left it off, as panels do: Altair sets it for a process
    with schemapi.debug_mode(True), pytest.raises(jsonschema.ValidationError):
        alt.InlineData(values=rows)
