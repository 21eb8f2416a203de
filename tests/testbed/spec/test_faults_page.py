"""docs/faults.md: every example loads, every kind of fault has one, and every event has a text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node.registry import PROTOCOLS
from testbed.spec import experiment as spec
from testbed.spec.raw import FAULT_KINDS
from topologies.formats.yaml_source import reads

PAGE = (Path(__file__).parents[3] / "docs" / "faults.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
HEADER = (
    "name: x\nquestion: q\ntopology: three-partitions\nprotocol: {name: sequencer}\n"
    "workload: {kind: periodic, rate: 10 /s, size: 64 B}\nduration: 20 s\n"
)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_loads_and_becomes_events(example: str) -> None:
    experiment = spec.loads(HEADER + example, "docs/faults.md", protocols=PROTOCOLS)
    assert experiment.faults
    assert all(str(fault) for fault in experiment.faults)


def test_every_kind_has_an_example() -> None:
    found: set[str] = set()
    for example in EXAMPLES:
        blocks = reads(example, "docs/faults.md").value
        assert isinstance(blocks, dict)
        faults = blocks["faults"]
        assert isinstance(faults, list)
        found |= {key for block in faults if isinstance(block, dict) for key in block}
    assert found - {"at", "for"} == set(FAULT_KINDS)
