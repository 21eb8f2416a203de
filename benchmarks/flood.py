"""Sender for benchmarks, started in a node: multicasts Orderbed datagrams at a steady rate.

    python -m benchmarks.flood RATE SECONDS GROUP_ADDRESS PORT

The transmission number counts the datagrams. Prints their number, and the seconds taken.
"""

from __future__ import annotations

import socket
import sys
import time

from node.wire import Kind, Message, encode_envelope, encode_message

MESSAGE = encode_message(Message(kind=Kind.RELIABLE_DATA, origin=0, incarnation=1, seq=1, payload=bytes(256)))


def main(rate_per_s: float, duration_s: float, address: str, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
        out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        out.connect((address, port))
        began = time.monotonic()
        count = round(rate_per_s * duration_s)
        for number in range(count):
            while (wait_s := began + number / rate_per_s - time.monotonic()) > 0:
                time.sleep(wait_s)
            out.send(encode_envelope(group=1, sender=0, sender_incarnation=1, transmission=number + 1) + MESSAGE)
        print(count, time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
