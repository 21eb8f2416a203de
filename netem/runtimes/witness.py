"""The witness of a run: what the Docker daemon tells of its containers, beside their exit codes.

An exit code does not say who was the killer: the kernel at a memory limit, or somebody at another terminal with
`docker kill`. The daemon's events do, in their order: `oom` and `kill` come before the `die` that they cause.
When the events end by themselves, the daemon is gone.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import requests
from docker.errors import DockerException

from netem.errors import FabricError
from netem.runtimes.cgroups import over_its_memory
from netem.runtimes.daemon import RUN_LABEL, connect, root_cause

HEARING_BOUND_S = 5.0
"""An end that we know of is in the events within milliseconds."""

EVENTS = ["oom", "kill", "die"]


@dataclass(slots=True)
class Testimony:
    """What was seen of one container until it died."""

    memory_ran_out: bool = False
    signals: list[int] = field(default_factory=list)
    """That were sent through the daemon, by anybody."""
    deaths: int = 0


class Witness:
    """Listens from the start of a run to its end. Any thread may ask."""

    def __init__(self, run_id: str) -> None:
        """Raises FabricError when the daemon tells no events."""
        self._seen: defaultdict[str, Testimony] = defaultdict(Testimony)
        self._news = threading.Condition()
        self._is_closed = False
        self._is_lost = False
        self._client = connect()
        try:
            filters = {"type": ["container"], "event": EVENTS, "label": [f"{RUN_LABEL}={run_id}"]}
            self._events = self._client.api.events(since=int(time.time()), filters=filters, decode=True)
        except (DockerException, OSError) as error:
            self._client.close()
            raise FabricError(f"Docker does not tell what becomes of containers: {root_cause(error)}") from error
        self._listener = threading.Thread(target=self._listen, name="events of Docker", daemon=True)
        self._listener.start()

    @property
    def is_lost(self) -> bool:
        """The daemon has gone, and with it what this run's containers do."""
        return self._is_lost

    def hear(self, container_id: str) -> Testimony:
        """What there is about a container that has died. Waits until its death is told, or the daemon is gone."""
        with self._news:
            self._news.wait_for(lambda: self._seen[container_id].deaths > 0 or self._is_lost, HEARING_BOUND_S)
            return self._seen[container_id]

    def await_loss(self, timeout_s: float) -> bool:
        """Whether the daemon is found gone within this time."""
        with self._news:
            return self._news.wait_for(lambda: self._is_lost, timeout_s)

    def close(self) -> None:
        self._is_closed = True
        with suppress(DockerException, OSError, requests.RequestException):  # it may have hung up already
            self._events.close()
        self._listener.join(HEARING_BOUND_S)
        self._client.close()

    def _listen(self) -> None:
        # However the stream ends unless we ended it, nothing more will be told: that is what `is_lost` says.
        with suppress(Exception), closing(self._events):
            for event in self._events:
                with self._news:
                    self._take(event)
                    self._news.notify_all()
        with self._news:
            self._is_lost = not self._is_closed
            self._news.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        seen = self._seen[event["Actor"]["ID"]]
        match event["Action"]:
            case "oom":
                seen.memory_ran_out = True
            case "kill":
                number = event["Actor"]["Attributes"].get("signal", "")
                seen.signals.append(int(number) if number.isdigit() else 0)
            case "die":
                seen.deaths += 1


def cause_of_end(seen: Testimony, code: int, *, asked: Sequence[signal.Signals], memory_bytes: int | None) -> str:
    """Who ended a container, where it did not end by itself; empty: it did, or we asked for it."""
    if seen.memory_ran_out and code == -signal.SIGKILL:
        return over_its_memory(memory_bytes)
    others = list(seen.signals)
    for number in asked:
        if number in others:
            others.remove(number)
    if others:
        return f"somebody else ended its container through Docker (kill, stop or restart: signal {others[-1]})"
    return ""
