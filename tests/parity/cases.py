"""The experiments of the parity suite: small networks with one impairment each, at 5 ms and more, so that the tenths of
a millisecond added by a real kernel and a real process are far below the compared values.
"""

from __future__ import annotations

from typing import Any

import yaml

CASES: dict[str, str] = {
    "ports": """
question: Does each impairment of a port do the same?
topology: {name: six, partitions: {p1: {nodes: 6}}}
impairments:
  "*": {to-node: {delay: 10 ms}}
  p1/n2: {to-node: {jitter: 4 ms}}
  p1/n3: {to-node: {loss: 5 %}}
  p1/n4: {to-node: {loss: 10 %, burst: 3 frames}}
  p1/n5: {to-node: {duplicate: 5 %}}
  p1/n6: {to-node: {reorder: 5 %}}
protocol: {name: reliable}
workload: {kind: poisson, rate: 100 /s, size: 256 B}
duration: 4 s
""",
    "overrun": """
question: Does a queue that is too slow lose as many frames?
topology: {name: three, partitions: {p1: {nodes: 3}}}
impairments: {"*": {to-node: {delay: 10 ms}}}
protocol: {name: sequencer}
workload: {kind: periodic, rate: 60 /s, size: 512 B}
duration: 4 s
faults: [{at: 1 s, for: 1 s, impair: {targets: [p1/n3], rate: 400 kbit/s, queue: 10 frames}}]
""",
    "bus": """
question: Do frames wait as long for a medium that all share?
topology: {name: shared, partitions: {p1: {nodes: 4, bus: {rate: 2 Mbit/s, queue: 200 frames}}}}
impairments: {"*": {to-node: {delay: 10 ms}}}
protocol: {name: sequencer}
dissemination: unicast
workload: {kind: periodic, rate: 20 /s, size: 512 B}
duration: 4 s
""",
    "link": """
question: Does a link between two partitions cost the same, in each direction its own?
topology:
  name: pair
  partitions: {p1: {nodes: 2}, p2: {nodes: 2}}
  links: [{between: [p1, p2], there: {delay: 20 ms}, back: {delay: 5 ms}, rate: 10 Mbit/s}]
impairments: {"*": {to-node: {delay: 5 ms}}}
protocol: {name: sequencer}
workload: {kind: poisson, rate: 40 /s, size: 256 B}
duration: 3 s
""",
    "cut": """
question: Does a cut that heals cost the same?
topology: {name: four, partitions: {p1: {nodes: 4}}}
impairments: {"*": {to-node: {delay: 10 ms}}}
protocol: {name: sequencer}
workload: {kind: periodic, rate: 40 /s, size: 256 B}
duration: 4 s
faults: [{at: 1 s, for: 500 ms, cut: {groups: [[p1/n1, p1/n2], [p1/n3, p1/n4]]}}]
""",
    "crash": """
question: Do a crash, a restart and a pause look the same?
topology: {name: four, partitions: {p1: {nodes: 4}}}
impairments: {"*": {to-node: {delay: 10 ms}}}
protocol: {name: reliable}
workload: {kind: poisson, rate: 40 /s, size: 256 B}
duration: 4 s
faults:
  - {at: 1 s, for: 1 s, crash: {targets: [p1/n4]}}
  - {at: 2500 ms, for: 500 ms, pause: {targets: [p1/n2]}}
""",
}
"""Cases by name; `text` adds the name and the seed."""

SEED = 11


def text(name: str) -> str:
    """The experiment file of a case."""
    return f"name: parity-{name}\nseed: {SEED}\ndrain: 8 s\n{CASES[name].lstrip()}"


def control(name: str) -> str:
    """The same load without faults, impaired ports and links, and shared media. The remaining delay is that of the
    machine.
    """
    case: dict[str, Any] = yaml.safe_load(text(name))
    del case["impairments"]
    case.pop("faults", None)
    for link in case["topology"].get("links", ()):
        del link["there"], link["back"]
    for partition in case["topology"]["partitions"].values():
        partition.pop("bus", None)
    return yaml.safe_dump(case | {"name": f"parity-{name}-control"}, sort_keys=False)
