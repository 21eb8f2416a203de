"""Random networks with loss, duplication, reordering, corruption, pauses and cuts, against all that CO and LO promise.

To see one again: `python -m tests.node.protocols.co.test_random PROTOCOL SEED`.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.checks.properties import Verdict
from node.core import Core, Membership
from node.protocols.co.state import Recovery
from node.registry import PROTOCOLS
from tests.mutants.recorded import Recorded, verdicts
from tests.node.hash_seeds import said_under
from tests.node.protocols import scenarios

ALL_MEMBERS = frozenset(range(16))
"""Members that never crash, which are all: a crash stops the order."""
seeds = st.integers(0, 2**32 - 1)


def run(protocol: str, seed: int) -> str:
    """Check one history against the promises; returns the digest of its transcript."""
    rng = Random(f"{seed}/co parameters")
    parameters: dict[str, Any] = {
        "window": rng.choice((1, 4, 64)),
        "buffer_bytes": rng.choice((8_400, 20_000, 1 << 20)),
        "retransmission": rng.choice(list(Recovery)),
    }

    def build(membership: Membership, seed: int) -> Core:
        return PROTOCOLS[protocol].build(membership=membership, parameters=parameters, seed=seed)

    made = scenarios.scenario(seed, build, spare=ALL_MEMBERS, cluster_type=Recorded)
    cluster = made.cluster
    try:
        scenarios.check(made)
        assert isinstance(cluster, Recorded)
        # Without submissions all is unknown.
        kept = {Verdict.PASS} if cluster.submissions else {Verdict.PASS, Verdict.UNKNOWN}
        found = verdicts(cluster.history(), cluster.members, PROTOCOLS[protocol].promises)
        assert set(found.values()) <= kept, found
    except AssertionError as error:
        error.add_note(f"{parameters} {made}; replay: python -m tests.node.protocols.co.test_random {protocol} {seed}")
        raise
    return cluster.transcript()


@pytest.mark.parametrize("protocol", ["co", "lo"])
@settings(max_examples=4, deadline=None)
@given(seed=seeds)
def test_random_histories_keep_all_promises(protocol: str, seed: int) -> None:
    run(protocol, seed)


def test_a_seed_repeats_its_history_under_any_hash_seed() -> None:
    assert said_under("tests.node.protocols.co.test_random", "co", "7") == {run("co", 7)}


if __name__ == "__main__":
    sys.stdout.write(run(sys.argv[1], int(sys.argv[2])) + "\n")
