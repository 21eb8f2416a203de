"""The executor against the host's kernel: order, batches, and the text of a refusal."""

from __future__ import annotations

import base64
import errno
from typing import Any

import pytest

from netem.errors import FabricError
from netem.kernel.supervised import SupervisorLink
from netem.wiring import netlink, steps
from netem.wiring.executor import Executor
from netem.wiring.steps import Kernel, Side

pytestmark = pytest.mark.root


def executor_of(agent: SupervisorLink | Overtaken, seed: int = 1) -> Executor:
    return Executor(Kernel.HOST, {Side.HOST: agent, Side.CARRIER: agent}, seed=seed)


@pytest.fixture
def executor(supervisor: SupervisorLink) -> Executor:
    return executor_of(supervisor)


def names(executor: Executor, namespace: str = "") -> set[str]:
    replies = executor.exchange(Side.HOST, namespace, [netlink.get_links()], "look")
    return {link.name for link in netlink.links_in(replies)}


def test_steps_may_refer_to_what_the_same_batch_makes(executor: Executor) -> None:
    cable = steps.AddCable(name="a", index=501, peer="b", peer_index=502)
    ups = [steps.BringUp(device=device) for device in ("br1", "a", "b")]
    ready = steps.AwaitReady(devices=("a", "b", "br1"))
    executor.run([steps.AddBridge(name="br1", index=500), cable, steps.Plug(device="b", bridge="br1"), *ups, ready])
    assert {"br1", "a", "b"} <= names(executor)
    assert executor.index(Side.CARRIER, "", "b") == 502


def test_a_cable_may_end_in_another_namespace(executor: Executor) -> None:
    executor.run(
        [
            steps.MakeNamespaces(names=("far",)),
            steps.AddCable(name="near", index=501, peer="eth0", peer_index=501, peer_namespace="far"),
            steps.AddAddress(namespace="far", device="eth0", ip="10.9.0.1", prefix_length=16, broadcast="10.9.255.255"),
        ]
    )
    assert "eth0" not in names(executor)
    assert "eth0" in names(executor, "far")


def test_a_refusal_names_the_step_its_place_and_the_kernels_reason(executor: Executor) -> None:
    bridges = (("br1", 500), ("br2", 501), ("br1", 502), ("br3", 503))
    with pytest.raises(FabricError) as caught:
        executor.run([steps.AddBridge(name=name, index=index) for name, index in bridges])
    said = str(caught.value)
    assert said.startswith("[carrier, fabric] add a bridge br1 index 502: the host kernel refused: ")
    assert "exists" in said
    assert "errno 17" in said


def test_a_device_that_is_not_there_is_named(executor: Executor) -> None:
    with pytest.raises(FabricError, match="no device nowhere in the fabric namespace"):
        executor.run([steps.BringUp(device="nowhere")])


def test_a_device_that_never_carries_frames_is_reported(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netem.wiring.executor._READY_TIMEOUT_S", 0.05)
    cable = steps.AddCable(name="a", index=501, peer="b", peer_index=502)
    with pytest.raises(FabricError, match="wait until these carry frames: a: 1 of them still carry nothing"):
        executor.run([cable, steps.BringUp(device="a"), steps.AwaitReady(devices=("a",))])


def test_a_setting_that_is_not_there_is_named_unless_it_is_optional(executor: Executor) -> None:
    missing = (("net/ipv4/no_such_setting", "1"),)
    executor.run([steps.SetSysctls(settings=missing, optional=True)])
    with pytest.raises(FabricError, match=r"No such file or directory.*no_such_setting"):
        executor.run([steps.SetSysctls(settings=missing)])


def test_large_batches_come_back_whole_and_in_order(supervisor: SupervisorLink) -> None:
    """More messages than are sent at once, with a dump among them and a refusal at the end."""
    bridges = [netlink.add_bridge(f"x{number}", 1000 + number) for number in range(120)]
    messages = [*bridges[:60], netlink.get_links(), *bridges[60:], bridges[7]]
    reply = supervisor.agent("netlink", namespace="", batch=base64.b64encode(netlink.numbered(messages)).decode())
    assert reply["error"]["index"] == len(messages) - 1
    seen = {link.name for link in netlink.links_in(base64.b64decode(reply["replies"]))}
    assert {f"x{number}" for number in range(60)} <= seen
    assert "x60" not in seen


class Overtaken:
    """An agent whose first dumps are interrupted by changes elsewhere, as the kernel's are on a busy machine."""

    def __init__(self, hand: SupervisorLink, times: int) -> None:
        self._agent = hand
        self.left = times

    def agent(self, do: str, **arguments: Any) -> dict[str, Any]:
        if do == "netlink" and self.left:
            self.left -= 1
            return {"replies": "", "error": {"errno": errno.EINTR, "text": "the dump was overtaken", "index": 0}}
        return self._agent.agent(do, **arguments)


def test_an_overtaken_dump_is_asked_for_again_but_not_for_ever(supervisor: SupervisorLink) -> None:
    patient = Overtaken(supervisor, 3)
    assert "lo" in names(executor_of(patient))
    assert patient.left == 0
    hopeless = Overtaken(supervisor, 1000)
    with pytest.raises(FabricError, match="overtaken"):
        names(executor_of(hopeless))


def test_every_change_of_every_place_gets_a_seed_of_its_own(supervisor: SupervisorLink) -> None:
    one, same, other = (executor_of(supervisor, seed) for seed in (1, 1, 2))
    sequence = [one.next_seed(label) for label in ("a", "a", "b")]
    assert len(set(sequence)) == 3
    assert sequence == [same.next_seed(label) for label in ("a", "a", "b")]
    assert sequence[0] != other.next_seed("a")
