"""How many cores a process may use: the least of what each limit says."""

from __future__ import annotations

import pytest

from psbench.errors import ParameterError
from psbench.system import cores as module
from psbench.system.cores import _quotas, cores


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Ten cores, and no other limit."""
    monkeypatch.setattr(module, "_affinity", lambda: 10)
    monkeypatch.setattr(module, "_quotas", lambda *_: iter(()))
    for name in ("PSBENCH_CORES", "CPU_LIMIT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 10),
        ({"PSBENCH_CORES": "3"}, 3),
        ({"PSBENCH_CORES": "40"}, 10),
        ({"CPU_LIMIT": "0.5"}, 1),
        ({"CPU_LIMIT": "1.5", "PSBENCH_CORES": "4"}, 2),
        ({"CPU_LIMIT": "0.0"}, 10),  # what JupyterHub says of no limit
        ({"CPU_LIMIT": "soon", "PSBENCH_CORES": ""}, 10),
    ],
)
def test_variables_cap_them(variables, expected, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cores() == expected


@pytest.mark.parametrize("value", ["two", "0", "-1", "nan"])
def test_a_cap_that_is_none_is_one_line(value, monkeypatch):
    monkeypatch.setenv("PSBENCH_CORES", value)
    with pytest.raises(ParameterError, match=rf"PSBENCH_CORES: expected a number of cores.* got '{value}'"):
        cores()


GROUPS = {
    "version 2": ("0::/user/job", {"user/job/cpu.max": "max 100000", "user/cpu.max": "150000 100000"}, [1.5]),
    "both": ("0::/a", {"a/cpu.max": "300000 100000", "cpu.max": "200000 100000"}, [3, 2]),
    "in a container": ("0::/not/here", {"cpu.max": "50000 100000"}, [0.5]),
    "version 1": (
        "4:memory:/x\n2:cpu,cpuacct:/x\n0::/",
        {"cpu,cpuacct/x/cpu.cfs_quota_us": "400000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
        [4],
    ),
    "version 1 without a limit": (
        "1:cpu:/",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        [],
    ),
    "none": ("0::/", {}, []),
}


@pytest.mark.parametrize("case", GROUPS)
def test_quotas_of_control_groups(case, tmp_path):
    membership, files, expected = GROUPS[case]
    (tmp_path / "membership").write_text(membership + "\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert list(_quotas(tmp_path / "membership", tmp_path)) == expected


def test_a_system_without_control_groups_has_no_quota(tmp_path):
    assert list(_quotas(tmp_path / "nothing", tmp_path)) == []


def test_the_quota_counts(monkeypatch):
    monkeypatch.setattr(module, "_quotas", lambda *_: iter([2.5]))
    assert cores() == 3
