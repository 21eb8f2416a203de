"""The configuration line: its values, and one sentence for every mistake."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from node.core import Membership
from node.errors import LocalError
from node.host.config import Address, parse
from node.host.workload import RateChange, WorkloadKind

GOOD: dict[str, Any] = {
    "group": 7,
    "member": 1,
    "incarnation": 2,
    "name": "p1/n2",
    "members": [
        {"index": 0, "name": "p1/n1", "ip": "10.1.0.1", "partition": 1},
        {"index": 1, "name": "p1/n2", "ip": "10.1.0.2", "partition": 1},
    ],
    "ip": "10.1.0.2",
    "port": 7700,
    "trace": {"ip": "10.1.255.253", "port": 7701},
    "dissemination": "multicast",
    "multicast": {"group": "239.77.0.1", "ttl": 16, "near": "239.77.1.1"},
    "protocol": {"name": "sequencer", "parameters": {"outstanding": 3}},
    "clock": {"offset_ns": -5, "drift_ppm": 12.5},
    "workload": {
        "kind": "periodic",
        "rate_per_s": 50.0,
        "size_bytes": 512,
        "stop_after_ns": 20_000_000_000,
        "events": [{"after_ns": 5, "rate_per_s": 10}],
    },
    "seed": 1,
    "shared_seed": 1,
    "drain_timeout_ns": 10_000_000_000,
}


def changed(path: str, value: object) -> str:
    raw = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    at: Any = raw
    for key in parents:
        at = at[int(key)] if key.isdigit() else at[key]
    if value is KeyError:
        del at[last]
    else:
        at[last] = value
    return json.dumps(raw)


def test_a_good_line_is_read_in_full() -> None:
    config = parse(json.dumps(GOOD))
    assert config.membership == Membership(member=1, members=(0, 1), incarnation=2)
    assert parse(changed("founders", [0])).membership.founders == (0,)
    assert config.address == Address(ip="10.1.0.2", port=7700)
    assert dict(config.peers) == {0: Address(ip="10.1.0.1", port=7700)}
    assert config.multicast == Address(ip="239.77.0.1", port=7700)
    assert config.near == Address(ip="239.77.1.1", port=7700)
    assert config.trace == Address(ip="10.1.255.253", port=7701)
    assert (config.protocol, config.parameters) == ("sequencer", {"outstanding": 3})
    assert config.workload.kind is WorkloadKind.PERIODIC
    assert config.workload.events == (RateChange(after_ns=5, rate_per_s=10.0),)
    assert config.clock(100).read_ns(100) == 95


def test_without_multicast_and_trace() -> None:
    config = parse(changed("dissemination", "unicast"))
    assert config.multicast is None
    assert config.near is None
    assert parse(changed("trace", None)).trace is None


def test_partitions_are_in_order_of_their_numbers_and_their_members_ascend() -> None:
    members = [{"index": index, "ip": f"10.1.0.{index + 1}", "partition": 9 if index % 2 else 4} for index in (3, 0, 1)]
    membership = parse(changed("members", members)).membership
    assert membership == Membership(member=1, members=(0, 1, 3), incarnation=2, partitions=((0,), (1, 3)))
    assert (membership.partition, membership.neighbours) == (1, (3,))
    assert parse(json.dumps(GOOD)).membership.partitions == (), "all members are in one"


def test_who_is_listed_twice_is_where_the_last_entry_says() -> None:
    twice = [*GOOD["members"], {"index": 0, "ip": "10.2.0.1", "partition": 2}]
    config = parse(changed("members", twice))
    assert config.membership.partitions == ((1,), (0,))
    assert config.peers == {0: Address(ip="10.2.0.1", port=7700)}


def test_a_scheduled_workload_has_its_instants() -> None:
    block = {**GOOD["workload"], "kind": "scheduled", "events": []}
    config = parse(changed("workload", {**block, "instants_ns": [0, 5, 5]}))
    assert config.workload.instants_ns == (0, 5, 5)
    for wrong, sentence in (([5, 0], "in order"), ([True], "whole numbers"), (5, "instants_ns must be a list")):
        with pytest.raises(LocalError, match=sentence):
            parse(changed("workload", {**block, "instants_ns": wrong}))


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("group", KeyError, "needs 'group'"),
        ("group", 2**32, "group must be a whole number from 0 to 4294967295"),
        ("group", True, "group must be a whole number"),
        ("member", 5, "member 5 is not among the members"),
        ("incarnation", 0, "incarnation must be a whole number from 1"),
        ("founders", [0, 5], "founders must be some of the members"),
        ("founders", ["p1/n1"], "founders must hold whole numbers"),
        ("members", {}, "members must be a list"),
        ("members.0.ip", "10.1.0.300", "ip must be an IPv4 address, not '10.1.0.300'"),
        ("members.0.partition", KeyError, r"members\[0\] needs 'partition'"),
        ("members.1.partition", 0, r"members\[1\]: partition must be a whole number from 1 to 65535"),
        ("members.1.partition", True, r"members\[1\]: partition must be a whole number"),
        ("multicast.near", KeyError, "multicast needs 'near'"),
        ("multicast.near", "10.1.0.1", "multicast: near must be a multicast address, not 10.1.0.1"),
        ("multicast.near", "239.77.0.1", "multicast: group and near must differ, not be 239.77.0.1 both"),
        ("multicast.group", "10.1.255.255", "multicast: group must be a multicast address, not 10.1.255.255"),
        ("ip", "localhost", "ip must be an IPv4 address"),
        ("port", 0, "port must be a whole number from 1"),
        ("trace.port", "x", "trace: port must be"),
        ("dissemination", "broadcast", "dissemination must be one of multicast, unicast"),
        ("protocol.parameters", [], "protocol: parameters must be a JSON object"),
        ("clock.drift_ppm", "fast", "clock: drift_ppm must be a number"),
        ("workload.kind", "bursty", "workload: kind must be one of periodic, poisson, scheduled, saturating, silent"),
        ("workload.kind", "scheduled", "workload needs 'instants_ns'"),
        ("workload.size_bytes", 7, "workload: size_bytes must be a whole number from 8"),
        ("workload.rate_per_s", -1, "rate must not be negative"),
        ("workload.events.0.after_ns", -1, r"workload: events\[0\]: after_ns must be"),
        ("name", "", "name must be a short text"),
    ],
)
def test_every_mistake_gets_its_sentence(path: str, value: object, sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        parse(changed(path, value))


@pytest.mark.parametrize("line", ["", "{", "[]", "null", "NaN", '{"group": 1e999}'])
def test_what_is_no_configuration_is_refused(line: str) -> None:
    with pytest.raises(LocalError):
        parse(line)
