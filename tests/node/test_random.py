"""Random histories, checked against all promises. A failure names its seed and its faults.

To see one again: `python -m tests.node.test_random PROTOCOL SEED`.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.node.cluster import stack
from tests.node.hash_seeds import said_under
from tests.node.protocols.scenarios import RELIABLE, check, scenario

PARAMETERS: dict[str, dict[str, Any]] = {
    "reliable": RELIABLE,
    "sequencer": {"reliable": RELIABLE, "outstanding": 8},
    "lamport": {"reliable": RELIABLE},
    "allack": {"reliable": RELIABLE, "ahead": False},
    "abcast": {"reliable": RELIABLE, "outstanding": 4},
    "amoeba": {"reliable": RELIABLE, "outstanding": 4, "resilience": 1},
}
seeds = st.integers(0, 2**32 - 1)


def run(protocol: str, seed: int) -> str:
    """Check one history against the promises; returns the digest of its transcript."""
    made = scenario(seed, stack(protocol, **PARAMETERS[protocol]))
    try:
        check(made, is_total=protocol != "reliable")
    except AssertionError as error:
        error.add_note(str(made))
        raise
    return made.cluster.transcript()


@pytest.mark.parametrize("protocol", sorted(PARAMETERS))
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_random_histories_keep_all_promises(protocol: str, seed: int) -> None:
    run(protocol, seed)


def test_a_seed_repeats_its_history_under_any_hash_seed() -> None:
    for protocol in sorted(PARAMETERS):
        assert said_under("tests.node.test_random", protocol, "7") == {run(protocol, 7)}


if __name__ == "__main__":
    sys.stdout.write(run(sys.argv[1], int(sys.argv[2])) + "\n")
