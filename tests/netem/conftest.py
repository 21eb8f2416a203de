"""A bed and a runtime in each world, for the modules that ask the same of both; a module may have a bed of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netem.network import Bed, KernelWish
from tests.netem.carriers import Carrier, carrier_of
from tests.netem.network import topology
from tests.worlds import WORLDS


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bed(world: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """One for each world: a bed does not hold a node's namespace itself and adopt one, too."""
    with Bed.open(topology(2), kernel=KernelWish.UML, log_dir=tmp_path_factory.mktemp(f"bed-{world}")) as opened:
        yield opened


@pytest.fixture(scope="module")
def runtime(world: str, bed: Bed) -> Iterator[Carrier]:
    """One for all tests of a module: each start is a new incarnation."""
    with carrier_of(world, bed) as opened:
        yield opened
