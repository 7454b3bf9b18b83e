"""Are a system's facts about its processors read correctly, and unknown facts left out?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from profiler.host.children import ChildExit, last_line
from profiler.host.system import (
    NO_CONTAINER,
    UNLIMITED,
    Host,
    boost,
    caches,
    container,
    cpu_limit,
    host_facts,
    host_state,
    speed_variables,
)

CPU = "sys/devices/system/cpu"


def host(where: Path, files: Mapping[str, str] | None = None, **fields: object) -> Host:
    """A machine of these files."""
    for name, text in (files or {}).items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    given = {
        "variables": {},
        "load": lambda: (1.5, 1.0, 0.5),
        "usable": lambda: 4,
        "cores": lambda: 8,
        "physical": lambda: None,
        "memory": lambda: None,
    }
    return Host(where, **given | fields)  # type: ignore[arg-type]  # fields of many types


def cache(number: int, level: int, kind: str, size: str) -> dict[str, str]:
    base = f"{CPU}/cpu0/cache/index{number}"
    return {f"{base}/level": str(level), f"{base}/type": kind, f"{base}/size": size}


WHOLE = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Example CPU 3000\nflags\t: a b",
    "proc/self/cgroup": "0::/user.slice",
    "sys/fs/cgroup/user.slice/cpu.max": "250000 100000",
    **cache(0, 1, "Data", "48K"),
    **cache(1, 1, "Instruction", "32K"),
    **cache(2, 2, "Unified", "2M"),
    f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave",
    f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "3500000",
    f"{CPU}/cpu0/cpufreq/scaling_cur_freq": "1200500",
    f"{CPU}/cpufreq/boost": "1",
}


def test_host_facts_of_a_whole_machine_are_read(tmp_path: Path) -> None:
    reasons: dict[str, str] = {}
    machine = host(tmp_path, WHOLE, physical=lambda: 2, memory=lambda: 2**20)
    assert host_facts(machine, reasons) == {
        "cpu": "Example CPU 3000",
        "cores": 8,
        "usable_cores": 4,
        "physical_cores": 2,
        "cpu_limit": 2.5,
        "caches": {"L1d": 49152, "L1i": 32768, "L2": 2097152},
        "host_memory_bytes": 1024 * 1024,
        "cpu_governor": "powersave",
        "cpu_max_MHz": 3500.0,
        "cpu_boost": "on",
        "container": NO_CONTAINER,
    }
    assert host_state(machine, reasons) == {"load_average": 1.5, "cpu_MHz": 1200.5}
    assert reasons == {}


def test_a_machine_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_load() -> tuple[float, float, float]:
        raise OSError

    def no_affinity() -> int:
        raise AttributeError

    monkeypatch.setattr("platform.processor", lambda: "")
    silent = host(tmp_path, load=no_load, usable=no_affinity, cores=lambda: None)
    reasons: dict[str, str] = {}
    assert host_facts(silent, reasons) == {}
    assert host_state(silent, reasons) == {}
    assert reasons.keys() == {
        "cpu", "cores", "usable_cores", "physical_cores", "cpu_limit", "caches", "cpu_boost",
        "host_memory_bytes", "cpu_governor", "cpu_max_MHz", "container", "state.load_average",
        "state.cpu_MHz",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/"}, None),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "max 100000"}, UNLIMITED),
        # The group above holds for the group below: the least of both.
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
                "sys/fs/cgroup/a/cpu.max": "50000 100000",
            },
            0.5,
        ),
        # In a container's own namespace the group is the root.
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "300000 100000"}, 3.0),
        # Version 1, with its controllers together or under the short name.
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/d",
                "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_quota_us": "150000",
                "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_period_us": "100000",
            },
            1.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            UNLIMITED,
        ),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "rubbish"}, None),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, files: Mapping[str, str], limit: float | str | None
) -> None:
    assert cpu_limit(host(tmp_path, files)) == limit


@pytest.mark.parametrize(
    ("files", "variables", "kind"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({}, {"container": "lxc"}, "lxc"),
        ({}, {"KUBERNETES_SERVICE_HOST": "x"}, "kubernetes"),
        ({}, {"SINGULARITY_CONTAINER": "/people/somebody/image.sif"}, "apptainer"),
        ({"proc/self/cgroup": "0::/kubepods/pod1"}, {}, "kubepods"),
        ({"proc/self/cgroup": "0::/user.slice"}, {}, NO_CONTAINER),
        ({}, {}, None),
    ],
)
def test_the_kind_of_container_is_recognised(
    tmp_path: Path, files: Mapping[str, str], variables: Mapping[str, str], kind: str | None
) -> None:
    assert container(host(tmp_path, files, variables=variables)) == kind


def test_boost_by_either_driver(tmp_path: Path) -> None:
    assert boost(host(tmp_path)) is None
    assert boost(host(tmp_path, {f"{CPU}/intel_pstate/no_turbo": "1"})) == "off"
    assert boost(host(tmp_path, {f"{CPU}/intel_pstate/no_turbo": "0"})) == "on"


def test_a_cache_of_unknown_size_is_left_out(tmp_path: Path) -> None:
    assert caches(host(tmp_path, cache(0, 1, "Data", "many") | cache(1, 3, "Unified", "1G"))) == {
        "L3": 2**30
    }


def test_an_error_does_not_tell_its_paths() -> None:
    done = ChildExit(1, "OSError: [Errno 2] No such file: '/people/somebody/mine.py'")
    assert last_line(done) == "OSError: [Errno 2] No such file: 'mine.py' (exit status 1)"


def test_variables_that_change_speed_without_anybodys_paths(tmp_path: Path) -> None:
    variables = {
        "OMP_NUM_THREADS": "4",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUDA_VISIBLE_DEVICES": "MIG-1/2",
        "LD_PRELOAD": "/people/somebody/lib/libjemalloc.so.2 ~somebody/mine.so",
        "CUDA_MPS_PIPE_DIRECTORY": "/scratch/mps-somebody/pipe/",
        "HOME": "/people/somebody",
    }
    assert speed_variables(host(tmp_path, variables=variables)) == {
        "OMP_NUM_THREADS": "4",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUDA_VISIBLE_DEVICES": "MIG-1/2",
        "LD_PRELOAD": "libjemalloc.so.2 mine.so",
        "CUDA_MPS_PIPE_DIRECTORY": "pipe",
    }
