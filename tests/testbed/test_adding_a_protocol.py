"""The protocol of the page on adding one: run as written there, in every order and with every kind of fault."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from node.registry import PROTOCOLS, ProtocolEntry
from testbed.fuzz.draw import draw
from testbed.fuzz.explore import Network, Scope
from testbed.fuzz.judge import judge
from testbed.paths import ROOT
from tests.testbed.fuzz.test_explore import explore_protocol

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
    found = explore_protocol(entry.name, Scope(submissions=(1, 1, 1), network=Network.IDEAL))
    assert found.violation is None, found.violation
    assert not found.cut_off
    assert found.states > 100
