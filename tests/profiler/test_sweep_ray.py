"""Does a Ray cluster measure the same plan into the same file?"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cli
from profiler.records.reading import MeasureError
from profiler.records.store import read
from profiler.sweep import order, ray_cluster, session
from profiler.sweep.failures import DIED, MEMORY, Failure
from profiler.sweep.ray_cluster import Actor, Cluster, connected, needs
from profiler.sweep.results import Results
from tests import sweeping
from tests.stand_ins import Instead
from tests.sweeping import grid, keys_in, points_of, request

FAKE = "tests.sweeping:measure"


@pytest.fixture(scope="module")
def local() -> Iterator[Cluster]:
    """A cluster of this machine."""
    pytest.importorskip("ray", reason="the extra costmodel[ray] is not installed")
    with connected("local", None) as cluster:
        yield cluster


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
def test_a_local_cluster_fills_the_file(local: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    ending = [request(l=length) for length in (sweeping.MEMORY, sweeping.KILLED)]
    plan = [*order.blocks(ending, 1, 0), *grid((2, 3), rounds=1)]
    found = session.sweep(plan, Results(path), local.actors(None, FAKE))
    assert found.kinds == {MEMORY: 1, DIED: 1}
    assert any("the Ray actor ended: " in sentence for sentence in found.failures)
    assert keys_in(path) == [point.key for point in points_of(plan)]
    assert all(r.environment["torch"] or r.failure for r in read(path)[0])
    assert {r.sweep["worker"].split()[0] for r in read(path)[0]} == {"node"}
    again = session.sweep(grid((2, 3), rounds=1), Results(path), local.actors(None, FAKE))
    assert again.kinds == {} and len(keys_in(path)) == len(points_of(plan))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
def test_an_actor_that_does_not_start_is_a_sentence(local: Cluster, tmp_path: Path) -> None:
    starts = local.actors(None, "tests.sweeping:nothing_of_this_name")
    with pytest.raises(MeasureError, match="the Ray actor did not start: "):
        session.sweep(grid(), Results(tmp_path / "runs.jsonl"), starts)


# Without a cluster


def test_what_each_actor_asks_for() -> None:
    node = {"Alive": True, "Resources": {"CPU": 16.0, "GPU": 2.0, "memory": 1e9}}
    assert needs(node, "cuda") == [{"num_gpus": 1}] * 2
    assert needs(node, "cpu") == [{"num_cpus": 16}]  # nobody else computes there
    assert needs({"Alive": True, "Resources": {"CPU": 4.0}}, "cuda") == []
    assert needs({"Alive": False, "Resources": {"GPU": 4.0}}, "cuda") == []


def test_every_gpu_of_every_node_gets_an_actor_of_its_own(instead: Instead) -> None:
    nodes = [
        {"Alive": True, "NodeID": f"{name}0000000000", "Resources": {"CPU": 8.0, "GPU": gpus}}
        for name, gpus in (("aaaa", 2.0), ("bbbb", 1.0))
    ]
    instead(on_node=lambda node: node)
    found = Cluster(SimpleNamespace(nodes=lambda: nodes), "cuda").actors(None)
    assert list(found) == ["node aaaa0000 cuda 0", "node aaaa0000 cuda 1", "node bbbb0000 cuda 0"]
    for node in nodes:
        node["Resources"] = {"CPU": 8.0}
    with pytest.raises(MeasureError, match="no node of the Ray cluster has a GPU"):
        Cluster(SimpleNamespace(nodes=lambda: nodes), "cuda").actors(None)


class FakeActor:
    """Answers without a cluster."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.environment = SimpleNamespace(remote=lambda: {"torch": "9.9"})
        self.answer = SimpleNamespace(remote=lambda request: answers.pop(0))


def test_an_actor_that_its_device_refuses_is_replaced() -> None:
    failed: dict[str, Any] = {"kind": "call failed", "sentence": "device-side assert"}
    answers = [{"failed": failed, "leaving": True}, {"failed": failed, "leaving": False}]
    made: list[FakeActor] = []
    killed: list[FakeActor] = []

    def remote(asked: Any) -> FakeActor:
        made.append(FakeActor(answers))
        return made[-1]

    ray = SimpleNamespace(
        remote=lambda kind: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=remote)),
        get=lambda value: value,
        kill=killed.append,
        exceptions=SimpleNamespace(RayError=ConnectionError),
    )
    actor = Actor(ray, {}, {"device": "cuda"})
    actor.begin()
    point = points_of(grid())[0]
    for _ in range(2):
        assert actor.measure(point, lambda *what: None) == Failure(**failed)
    assert len(made) == 2 and killed == made[:1]


def fake_ray(**resources: float) -> Any:
    """The package with a cluster of these resources, or none that answers."""

    def init(address: str, **_: Any) -> None:
        if not resources:
            raise ConnectionError("Could not find any running Ray instance.")

    return SimpleNamespace(
        init=init, shutdown=lambda: None, cluster_resources=lambda: dict(resources)
    )


def test_gpus_are_measured_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", fake_ray(CPU=8.0, GPU=4.0))
    for device, kind in ((None, "cuda"), ("cpu", "cpu"), ("cuda", "cuda")):
        with connected("auto", device) as cluster:
            assert cluster.kind == kind
    monkeypatch.setitem(sys.modules, "ray", fake_ray(CPU=8.0))
    with connected("auto", None) as cluster:
        assert cluster.kind == "cpu"


@pytest.mark.parametrize(
    ("ray", "words", "sentence"),
    [
        (None, (), "--ray needs the package ray: pip install 'costmodel[ray]', on every node"),
        (fake_ray(), (), "--ray auto: no cluster answers there: Could not find any running Ray"),
        (fake_ray(CPU=1.0), ("--device", "cuda:1"), "expected cpu or cuda, got 'cuda:1'"),
    ],
)
def test_without_a_cluster_there_is_one_sentence(
    ray: Any,
    words: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray)
    path = tmp_path / "runs.jsonl"
    command = ["sweep", "me", "--l", "2", "--d", "2", "--ray", "auto", "-o", str(path), *words]
    assert cli.run(command) == 2
    err = capsys.readouterr().err
    assert sentence in err and len(err.strip().splitlines()) == 1
    assert not path.exists()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
def test_a_real_cluster_is_taken_for_one(local: Cluster) -> None:
    ray_cluster.reach(local.ray.get_runtime_context().gcs_address)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_listens_is_said_before_ray_is_asked(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself tries for minutes."""
    begun: list[str] = []
    ray = SimpleNamespace(
        init=lambda address, **_: begun.append(address),
        shutdown=lambda: None,
        cluster_resources=dict,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
        with connected(address, None) as cluster:
            assert cluster.kind == "cpu" and begun == [address]
    with (
        pytest.raises(MeasureError, match=f"--ray {address}: no cluster answers there: .*refused"),
        connected(address, None),
    ):
        pass
    with (
        pytest.raises(MeasureError, match="99999 is no port: expected 1"),
        connected(f"{scheme}127.0.0.1:99999", None),
    ):
        pass
    assert begun == [address]
