"""Writes one key after another to an etcd cluster through its HTTP gateway; tells on standard error what came of it.

    python3 etcd-client.py PORT LEADER MOVE_AFTER_S HOST...

Takes its cues on standard input (start, drain, stop). MOVE_AFTER_S after the start it makes LEADER the leader, so that
the experiment knows whom it cuts away.
"""

# ruff: noqa: T201  (it speaks to whoever runs it by lines)

import base64
import http.client
import json
import sys
import threading
import time

TIMEOUT_S = 1.0
PAUSE_S = 0.02


def main():
    port, leader, move_after_s, *hosts = sys.argv[1:]
    client = Client(int(port), hosts)
    mover = threading.Timer(float(move_after_s), client.move, [leader])
    print(json.dumps({"event": "ready"}), flush=True)
    for line in sys.stdin:
        cue = line.split()[:1]
        if cue == ["start"]:
            threading.Thread(target=client.write, daemon=True).start()
            mover.start()
        elif cue == ["drain"]:
            mover.cancel()
            client.has_ended.set()
            print("drained", flush=True)
        elif cue == ["stop"]:
            break
    client.tell()


class Client:
    def __init__(self, port, hosts):
        self.port = port
        self.hosts = hosts
        self.has_ended = threading.Event()
        self.written = self.failed = 0
        self.longest_s = 0.0

    def write(self):
        """Until it is over: one key at a time, at the next member when this one does not do it."""
        place, latest = 0, time.monotonic()
        connection = None
        while not self.has_ended.wait(PAUSE_S):
            host = self.hosts[place % len(self.hosts)]
            try:
                connection = connection or http.client.HTTPConnection(host, self.port, timeout=TIMEOUT_S)
                put(connection, f"k{self.written % 100}", "x" * 200)
            except (OSError, http.client.HTTPException) as error:
                self.failed += 1
                print(f"{time.monotonic():.3f} {host}: {error}", file=sys.stderr, flush=True)
                place += 1
                connection = None
                continue
            self.written += 1
            self.longest_s = max(self.longest_s, time.monotonic() - latest)
            latest = time.monotonic()

    def move(self, leader):
        """Ask the leader to hand over to `leader`; an error is printed."""
        try:
            self.hand_over(leader)
        except (OSError, http.client.HTTPException, KeyError) as error:
            print(f"{time.monotonic():.3f} {leader} was not made the leader: {error}", file=sys.stderr, flush=True)

    def hand_over(self, leader):
        status = {host: self.ask(host, "status", {}) for host in self.hosts}
        wanted = status[leader]["header"]["member_id"]
        for host, told in status.items():
            if told["leader"] == told["header"]["member_id"] != wanted:
                self.ask(host, "transfer-leadership", {"targetID": wanted})
                print(f"{time.monotonic():.3f} {host} hands over to {leader}", file=sys.stderr, flush=True)

    def ask(self, host, what, request):
        connection = http.client.HTTPConnection(host, self.port, timeout=5 * TIMEOUT_S)
        return post(connection, f"/v3/maintenance/{what}", request)

    def tell(self):
        told = {"written": self.written, "failed": self.failed, "longest_s": round(self.longest_s, 3)}
        print(json.dumps(told), file=sys.stderr, flush=True)


def put(connection, key, value):
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in (("key", key), ("value", value))}
    return post(connection, "/v3/kv/put", encoded)


def post(connection, path, request):
    connection.request("POST", path, json.dumps(request))
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise http.client.HTTPException(f"{answer.status} {text[:200].decode(errors='replace').strip()}")
    return json.loads(text)


if __name__ == "__main__":
    main()
