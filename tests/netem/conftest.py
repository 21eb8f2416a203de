"""A network and a runtime in each world, for modules that test both; a module may have a network of its own. And a
supervisor for each test that asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from netem.kernel.supervised import SupervisorLink
from netem.network import EmulatedNetwork, KernelOption
from tests.netem.carriers import Carrier, carrier_of
from tests.netem.wired import topology
from tests.worlds import WORLDS


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def network(world: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedNetwork]:
    """One network for each world: a network does not both hold a node's namespace and adopt one."""
    with EmulatedNetwork.open(
        topology(2), kernel=KernelOption.UML, log_dir=tmp_path_factory.mktemp(f"network-{world}")
    ) as opened:
        yield opened


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[SupervisorLink]:
    link = SupervisorLink.start(tmp_path / "supervisor.log")
    yield link
    link.close()


@pytest.fixture(scope="module")
def runtime(world: str, network: EmulatedNetwork) -> Iterator[Carrier]:
    """One for all tests of a module: each start is a new incarnation."""
    with carrier_of(world, network) as opened:
        yield opened
