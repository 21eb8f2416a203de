"""Waiting for descriptors with any numbers."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from netem.kernel.framing import readable


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """As many descriptors as a process may have: by default a user has 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("least", [3, 1500], ids=["low", "beyond what select takes"])
def test_those_that_can_be_read_are_told_in_order(least: int, many_descriptors: None) -> None:
    one, other = socket.socketpair()
    with one, other:
        high = fcntl.fcntl(other.fileno(), fcntl.F_DUPFD_CLOEXEC, least)
        try:
            near = one.fileno()
            assert readable([near, high], 0.0) == []
            one.send(b"x")
            assert readable([near, high]) == [high]
            os.write(high, b"y")
            assert readable([high, near]) == [high, near]
            assert readable([one, other]) == [one, other]
        finally:
            os.close(high)


def test_an_end_counts() -> None:
    source, sink = os.pipe()
    os.close(sink)
    assert readable([source], 1.0) == [source]
    os.close(source)
