"""Frames and channels between the conductor and the agents."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.kernel.channel import Channel, LineChannel
from netem.kernel.framing import (
    LENGTH,
    LINE_PIECE,
    ChannelClosedError,
    LineServer,
    checked_length,
    pack,
    readable,
    receive_frame,
    send_frame,
    unpack,
)

values = st.dictionaries(st.text(), st.recursive(st.integers() | st.text() | st.none(), st.lists, max_leaves=5))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


@given(values)
def test_a_frame_comes_back_as_it_went(content: dict[str, Any]) -> None:
    frame = pack(content)
    assert checked_length(frame[: LENGTH.size]) == len(frame) - LENGTH.size
    assert unpack(frame[LENGTH.size :]) == content


def test_a_length_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="out of step"):
        checked_length(b"\xff\xff\xff\xff")


def test_descriptors_travel_along(pair: tuple[socket.socket, socket.socket]) -> None:
    read, write = os.pipe()
    send_frame(pair[0], {"do": "take"}, [write])
    os.close(write)
    content, received = receive_frame(pair[1])
    assert content == {"do": "take"}
    os.write(received[0], b"through")
    os.close(received[0])
    assert os.read(read, 100) == b"through"
    assert not os.get_inheritable(read)
    os.close(read)


@pytest.fixture
def channel(pair: tuple[socket.socket, socket.socket]) -> Iterator[Channel]:
    """A channel to the second socket of the pair."""
    made = Channel(pair[0])
    yield made
    made.close()


def in_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_many_threads_may_ask_at_once(channel: Channel, pair: tuple[socket.socket, socket.socket]) -> None:
    def serve() -> None:
        for _ in range(500):
            content, _received = receive_frame(pair[1])
            send_frame(pair[1], {"double": content["number"] * 2})

    in_thread(serve)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda number: channel.request("double", number=number)[0], range(500)))
    assert answers == [{"double": number * 2} for number in range(500)]


def test_a_channel_that_was_closed_at_either_end_says_so_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    channel = Channel(pair[0])
    pair[1].close()
    with pytest.raises(ChannelClosedError):
        channel.request("anything")
    channel.close()
    with pytest.raises(ChannelClosedError, match="closed on this side"):
        channel.request("anything")


def test_closing_ends_a_request_that_waits(channel: Channel, pair: tuple[socket.socket, socket.socket]) -> None:
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(channel.request, "never answered")
        receive_frame(pair[1])
        channel.close()
        assert isinstance(request.exception(5), ChannelClosedError)
    with pytest.raises(ChannelClosedError, match="end of file"):
        receive_frame(pair[1])


@pytest.mark.parametrize("size", [0, 1, LINE_PIECE - 60, LINE_PIECE, 3 * LINE_PIECE, 100_000])
def test_a_request_crosses_the_line_in_pieces(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    """Random text does not compress: the frame has as many pieces as its length suggests."""
    text = os.urandom(size).hex()

    def work() -> None:
        server = LineServer(pair[1].fileno())
        server.send({"hello": True})
        for _ in range(2):
            server.send({"got": server.receive()["text"]})

    guest = in_thread(work)
    channel = LineChannel(pair[0])
    assert channel.await_hello(5) == {"hello": True}
    channel.set_timeout(5)
    for _ in range(2):
        assert channel.request("echo", text=text) == {"got": text}
    guest.join(5)
    channel.close()


def test_the_line_never_carries_more_than_a_piece_unacknowledged(pair: tuple[socket.socket, socket.socket]) -> None:
    text = os.urandom(3000).hex()
    channel = LineChannel(pair[0])
    outcome: list[object] = []
    asker = in_thread(lambda: outcome.append(channel.request("x", text=text)))
    pieces = [pair[1].recv(65536)]
    while sum(map(len, pieces)) < LENGTH.size + checked_length(pieces[0][: LENGTH.size]):
        with pytest.raises(BlockingIOError):
            pair[1].recv(1, socket.MSG_DONTWAIT)
        pair[1].sendall(b".")
        pieces.append(pair[1].recv(65536))
    pair[1].sendall(b"." + pack({"ok": 1}))
    asker.join(5)
    assert outcome == [{"ok": 1}]
    assert len(pieces) > 3
    assert {len(piece) for piece in pieces[:-1]} == {LINE_PIECE}
    assert unpack(b"".join(pieces)[LENGTH.size :]) == {"do": "x", "text": text}
    channel.close()


def test_a_line_out_of_step_is_given_up(pair: tuple[socket.socket, socket.socket]) -> None:
    channel = LineChannel(pair[0])
    pair[1].sendall(b"?")
    with pytest.raises(ChannelClosedError, match="out of step"):
        channel.request("x")
    channel.close()


# Waiting for descriptors with any numbers.


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
