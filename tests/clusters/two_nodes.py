"""Two nodes of a Ray cluster on this machine, of which tests may kill the second."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from fedsim.clock.executors import make_executor

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster


@contextmanager
def two_nodes(monkeypatch: pytest.MonkeyPatch, **resources: int) -> Iterator["Cluster"]:
    """A cluster whose head is this process's own node; ``resources`` are those of each node."""
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    from ray.cluster_utils import Cluster

    head = {**resources, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        # Both nodes have one address, and Ray 2.52 would join either. A process whose own node is
        # lost has lost the cluster, so this process joins while there is no second node.
        with closing(make_executor("ray", address=cluster.address)):
            cluster.add_node(**resources)
            yield cluster
    finally:
        cluster.shutdown()
