"""Hostile datagrams: a million against each protocol, with the counts of refusals.

    python -m benchmarks.bench_hostile [datagrams] [protocol ...]

Each datagram must change nothing; the rate shows the cost of a flood to a node.
"""

from __future__ import annotations

import sys
import time

from node.registry import PROTOCOLS
from tests.node.hostile import refuse, tell_lies

MILLION = 1_000_000
LIES_PER_DATAGRAM = 20


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else MILLION
    names = sys.argv[2:] or sorted(PROTOCOLS)
    return max(bench(name, count) for name in names)


def bench(protocol: str, count: int) -> int:
    """Returns 0 if all were refused and nothing changed."""
    entry = PROTOCOLS[protocol]
    began = time.process_time()
    tally = refuse(entry, count)
    elapsed_s = time.process_time() - began
    is_good = tally.is_untouched and tally.refused.total() == count and not tally.delivered and not tally.sent
    print(f"{protocol}: {count:,} datagrams, {'untouched' if is_good else 'CHANGED'}, {count / elapsed_s:,.0f}/s")
    print("   " + ", ".join(f"{name} {number:,}" for name, number in sorted(tally.refused.items())))
    _, lies, most = tell_lies(entry, count // LIES_PER_DATAGRAM)
    print(f"   {lies.given.total():,} lies of a member: at most {most} messages held; refused {lies.refused.total():,}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
