"""The protocol of the page on adding one: run as written there, in every order and with every kind of fault."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from analysis.checks.properties import Property
from node.core import Core, Membership
from node.registry import PROTOCOLS, ProtocolEntry
from testbed.fuzz.draw import draw
from testbed.fuzz.explore import Network, Scope, explore, over_ideal_channels
from testbed.fuzz.judge import judge
from testbed.paths import ROOT

SEEDS = 60


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    text = (ROOT / "docs" / "adding-a-protocol.md").read_text(encoding="utf-8")
    module = ModuleType("a_protocol_of_the_page")
    sys.modules[module.__name__] = module
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(compile(block, "docs/adding-a-protocol.md", "exec"), module.__dict__)
    yield module
    del sys.modules[module.__name__]


@pytest.fixture
def entry(page: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ProtocolEntry:
    found: ProtocolEntry = page.ENTRY
    monkeypatch.setitem(PROTOCOLS, found.name, found)
    return found


def test_it_lives_through_random_networks_and_faults(entry: ProtocolEntry) -> None:
    deliveries = 0
    for seed in range(SEEDS):
        judged = judge(draw(entry.name, seed))
        assert not judged.failures, f"seed {seed}: {judged.failures[0]}"
        deliveries += judged.deliveries
    assert deliveries > 1000


def test_every_order_of_a_few_messages_is_right(entry: ProtocolEntry) -> None:
    def build(membership: Membership) -> Core:
        return over_ideal_channels(entry.build(membership=membership, parameters={}, seed=1), membership)

    promises = tuple(Property(name) for name in entry.promises)
    found = explore(build, scope=Scope(submissions=(1, 1, 1), network=Network.IDEAL), promises=promises)
    assert found.violation is None, found.violation
    assert not found.cut_off
    assert found.states > 100
