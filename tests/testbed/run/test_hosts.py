"""Names inside nodes, from topologies alone."""

from __future__ import annotations

from testbed.run.program import hosts_file
from topologies.load import loads


def test_a_node_is_called_by_partition_by_host_name_and_by_its_own_where_that_is_unique() -> None:
    text = "name: two\npartitions: {left: {nodes: 2}, right: {nodes: 1}}\nlinks: [{between: [left, right]}]\n"
    topology = loads(text)
    assert hosts_file(topology).splitlines() == [
        "127.0.0.1 localhost",
        "10.1.0.1 n1.left left-n1",
        "10.1.0.2 n2.left left-n2 n2",
        "10.2.0.1 n1.right right-n1",
    ]
