"""The choice of the kernel, its explanation, and the request that processors stay awake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from netem import probe as kernel
from netem.errors import FabricError
from netem.probe import REQUESTS, Probe, processors_awake
from netem.wiring.steps import Kernel, KernelOption

NAMES = (
    "namespaces", "host veth", "host bridge", "host netem", "host tbf", "host filters", "host redirect", "host ifb",
    "tap", "uml",
)  # fmt: skip


def probes(*missing: str) -> list[Probe]:
    """Results of `probe` with the named probes failed."""
    return [
        Probe(name=name, ok=name not in missing, detail=f"no {name} here" if name in missing else f"{name} is here")
        for name in NAMES
    ]


def test_a_host_with_everything_carries_the_wires_itself() -> None:
    choice = kernel.pick(KernelOption.AUTO, probes())
    assert choice.picked is Kernel.HOST
    assert choice.guest_linux is None
    assert len(choice.probes) == len(NAMES)


@pytest.mark.uml
@pytest.mark.parametrize("missing", ["host netem", "host tbf", "host filters", "host redirect", "host ifb"])
def test_a_host_that_lacks_something_gets_a_guest_and_a_reason(missing: str) -> None:
    choice = kernel.pick(KernelOption.AUTO, probes(missing))
    assert choice.picked is Kernel.UML
    assert choice.why.startswith(f"no {missing} here")
    assert choice.guest_linux is not None
    assert choice.guest_linux[0].isdigit()


@pytest.mark.uml
def test_a_guest_may_be_asked_for_although_the_host_could() -> None:
    choice = kernel.pick(KernelOption.UML, probes())
    assert (choice.picked, choice.why) == (Kernel.UML, "asked for")


@pytest.mark.parametrize(
    ("wish", "missing", "words"),
    [
        (KernelOption.AUTO, ("namespaces", "uml"), "^no namespaces here$"),
        (KernelOption.AUTO, ("host netem", "uml"), "no host netem here, and no uml here .*CONFIG_NET_SCH_NETEM"),
        (KernelOption.AUTO, ("host netem", "tap"), "no host netem here, and no tap here"),
        (KernelOption.HOST, ("host netem",), "kernel host was asked for, but no host netem here: .*or use kernel uml"),
        (KernelOption.UML, ("uml",), "kernel uml was asked for, but no uml here"),
        (KernelOption.UML, ("host bridge",), "kernel uml was asked for, but no host bridge here"),
    ],
)
def test_when_none_can_do_it_one_sentence_says_what_is_missing_and_what_helps(
    wish: KernelOption, missing: tuple[str, ...], words: str
) -> None:
    with pytest.raises(FabricError, match=words) as caught:
        kernel.pick(wish, probes(*missing))
    assert "\n" not in str(caught.value)


@pytest.mark.root
def test_probing_tries_everything_and_finds_netem_where_the_kernel_has_it() -> None:
    """/proc/kallsyms also tells whether this kernel has netem, once a module or a built-in has registered."""
    found = {probe.name: probe for probe in kernel.probe()}
    assert tuple(found) == NAMES
    assert all(probe.detail for probe in found.values())
    assert found["namespaces"].ok
    assert found["host veth"].ok
    with Path("/proc/kallsyms").open(encoding="ascii") as symbols:
        assert found["host netem"].ok == any(" netem_enqueue" in line for line in symbols)


# Processors that stay awake: the kernel is asked, and forgets the request when the asking process ends.


def asked_us() -> int:
    """The latency bound, in microseconds, of all requests to the kernel now."""
    return int.from_bytes(REQUESTS.read_bytes()[:4], "little")


@pytest.mark.root
def test_the_kernel_is_asked_and_forgets() -> None:
    before = asked_us()
    with processors_awake() as processors:
        assert processors.as_json() == {"awake": True}
        assert asked_us() == 0
    assert asked_us() == before


@pytest.mark.root
def test_nothing_is_left_of_one_that_was_killed() -> None:
    before = asked_us()
    script = "from netem.probe import processors_awake\nwith processors_awake(): print('awake', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"awake\n"
        assert asked_us() == 0
        holder.kill()
    assert asked_us() == before


@pytest.mark.parametrize(
    ("path", "why"), [("/nowhere/requests", "No such file or directory"), ("/dev/full", "No space left on device")]
)
def test_a_kernel_that_takes_no_request_is_no_error(path: str, why: str) -> None:
    with processors_awake(Path(path)) as processors:
        assert processors.as_json() == {"awake": False, "why": f"{path}: {why}"}
