"""Trace datagrams are sent in order and numbered, whatever error the kernel returns."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from node.host.config import Address
from node.host.recorder import MAX_WAITING, Recorder
from node.trace import MAX_RECORDS, Event, Record, decode_trace, encode_record


@pytest.fixture
def monitor() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        made.settimeout(5)
        yield made


def recorder_to(monitor: socket.socket) -> Recorder:
    return Recorder(group=9, member=2, incarnation=3, target=Address(ip="127.0.0.1", port=monitor.getsockname()[1]))


def record(number: int) -> bytes:
    return encode_record(Record(event=Event.SUBMIT, at_ns=1, clock_ns=2, number=number))


def test_full_datagrams_go_at_once_and_the_rest_with_a_flush(monitor: socket.socket) -> None:
    recorder = recorder_to(monitor)
    for number in range(MAX_RECORDS + 3):
        recorder.add(record(number))
    received = [decode_trace(monitor.recv(2048))]
    assert recorder.flush()
    received.append(decode_trace(monitor.recv(2048)))
    assert [(header.first, header.count) for header, _ in received] == [(1, MAX_RECORDS), (MAX_RECORDS + 1, 3)]
    assert [one.number for _, records in received for one in records] == list(range(MAX_RECORDS + 3))
    assert (received[0][0].group, received[0][0].node, received[0][0].node_incarnation) == (9, 2, 3)
    recorder.close()


def test_what_the_kernel_will_not_take_is_kept_in_order(monitor: socket.socket) -> None:
    recorder = recorder_to(monitor)

    class Refusing:
        def sendto(self, data: bytes, target: object) -> None:
            raise BlockingIOError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "_socket", Refusing())
        recorder.add(record(1))
        recorder.flush()
        recorder.add(record(2))
        assert not recorder.flush()
    recorder.close()
    assert [decode_trace(monitor.recv(2048))[0].first for _ in range(2)] == [1, 2]


def test_memory_is_bounded_and_what_is_given_up_is_a_visible_gap(monitor: socket.socket) -> None:
    recorder = Recorder(group=9, member=2, incarnation=3, target=Address(ip="255.255.255.255", port=9))
    for number in range(MAX_WAITING + 5):
        recorder.add(record(number))
        recorder.flush()
    assert recorder.given_up == 5
    recorder.close()


def test_without_a_monitor_nothing_is_kept() -> None:
    recorder = Recorder(group=9, member=2, incarnation=3, target=None)
    recorder.add(record(1))
    recorder.flush()
    assert not recorder._records
    assert not recorder._waiting
    recorder.close()
