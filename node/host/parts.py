"""A machine that consists of several processes: what its node must do for those that are not its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from node.core import Core
from node.host.application import Application
from node.host.host import Host
from node.host.node_clock import NodeClock
from node.wire import Message


class Parts(Application):
    """The application of such a node: what it asks for and hears is asked and heard in its parts. `core` is what they
    talk to; `clock` is shown by all of them."""

    answers = True
    core: Core
    clock: NodeClock

    @abstractmethod
    async def open(self, host: Host, after_inputs: Callable[[], object]) -> None:
        """Begin them, and wait until all are there. What they say goes to `host`, and `after_inputs` is called after
        each round of it. LocalError: one of them cannot run, and why."""

    @abstractmethod
    def start(self, load_start_ns: int) -> None:
        """They run from now on; times of the workload count from `load_start_ns` (true time)."""

    @abstractmethod
    def send(self, target: int, message: Message) -> None:
        """From the core to one of them."""

    @abstractmethod
    def counters(self) -> dict[str, Any]:
        """What they have counted: to be added to the node's own numbers of the same names, the others beside them."""

    @abstractmethod
    def stop(self, then: Callable[[], object]) -> None:
        """End them in order, or after a while in any way; `then` is called when all they had to say is said."""

    @abstractmethod
    def close(self) -> None:
        """End whatever is left of them, at once."""
