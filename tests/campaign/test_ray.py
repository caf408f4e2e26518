"""Campaigns on two nodes of a local Ray cluster: what a worker suffers is a verdict, what a node suffers none."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corpus import entry
from fuzz.ask.transport import WorkerUnavailable
from fuzz.ask.worker_process import WorkerProcess
from fuzz.campaign.session import run_campaign
from generators.program.case import Case
from tests.campaign.fakes import options, sampler, setup
from tests.campaign.test_campaign import events

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.worker

from fuzz.campaign import ray_workers  # noqa: E402 - needs ray

RULES = [{"match": "softmax", "verdict": "wrong_result"}, {"match": "relu", "do": "die"}]


@pytest.fixture(autouse=True)
def _time_is_up_where_a_fake_worker_hangs() -> None:
    """Not here: Ray pickles the methods of a transport, and no worker hangs."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    made.shutdown()


class Damage:
    """Draws cases; with number 12 the actor of a worker is killed, with number 24 a node."""

    def __init__(self, cluster: Any, remote: ray_workers.RayCluster) -> None:
        self.cluster, self.remote, self.done = cluster, remote, set[int]()
        self.workers: list[WorkerProcess] = []
        self.draw = sampler("softmax", "relu", every=5)

    def open_worker(self, *given: Any) -> WorkerProcess:
        self.workers.append(self.remote.open_worker(*given))
        return self.workers[-1]

    def __call__(self, seed: int, index: int, **form: object) -> Case:
        if index in (12, 24) and index not in self.done:
            self.done.add(index)
            if index == 12:
                transport = self.workers[0].transport
                assert isinstance(transport, ray_workers.RayTransport)
                ray.kill(transport._actor)
            else:
                self.cluster.remove_node(self.cluster.list_all_nodes()[-1])
        return self.draw(seed, index, **form)


def test_lost_actors_and_nodes_lose_no_case_and_make_no_finding(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where no actor is placed any more, this fails soon.
    monkeypatch.setattr(ray_workers, "NO_WORKER_SECONDS", 60.0)
    for name in ("first", "second"):
        # Ray 2.60 unpacks the checkout anew for each node. In a shared directory that takes files from running actors.
        cluster.add_node(num_cpus=1, runtime_env_dir_name=name)
    given = options(tmp_path, budget="40x", worker_config=setup(rules=RULES, seconds=0.02), shrink_seconds=2.0)
    with closing(ray_workers.RayCluster(cluster.address, given.worker_config, None, each=1)) as remote:
        assert remote.workers == 2
        damage = Damage(cluster, remote)
        result = run_campaign(replace(given, workers=remote.workers, open_remote=damage.open_worker), damage)
    assert result.error is None and not result.faults
    judged = events(given, "CaseJudged")
    assert sorted(event["index"] for event in judged) == list(range(40))
    assert not [event for event in judged if event["rejected"]]
    saved = entry.load_directory(tmp_path / "found").values()
    assert {one.found.verdict for one in saved if one.found} == {"worker_died", "wrong_result"}
    reasons = [event["reason"] for event in events(given, "WorkerDied")]
    assert sum("actor" in reason or "node" in reason for reason in reasons) >= 2


def test_a_cluster_without_a_place_is_an_error(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "NO_WORKER_SECONDS", 0.1)
    given = options(tmp_path, worker_config=setup(memory_mib=2**30))
    with (
        closing(ray_workers.RayCluster(cluster.address, given.worker_config, 1, each=1)) as remote,
        pytest.raises(WorkerUnavailable),
    ):
        run_campaign(replace(given, open_remote=remote.open_worker), sampler())
    assert not given.out.exists()
