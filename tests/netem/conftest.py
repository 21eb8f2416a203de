"""A network in each world, shared by all modules that test both, and a runtime for each module; a module may have a
network of its own. And a supervisor for each test that asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest

from netem.kernel.supervised import SupervisorLink
from netem.network import EmulatedNetwork, KernelOption
from netem.runtimes.daemon import connect
from tests.netem.carriers import Carrier, carrier_of
from tests.netem.wired import topology
from tests.worlds import WORLDS


@pytest.fixture(scope="package", params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
def client() -> Iterator[docker.DockerClient]:
    with closing(connect()) as connected:
        yield connected
