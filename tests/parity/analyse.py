"""`python -m tests.parity.analyse RUN...`: analyse several runs with one Spark session, in a process of its own, so
that it disturbs neither real wires nor the session of other tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

from analysis.engine.session import open_session
from analysis.summary import analyze


def main(runs: list[Path]) -> None:
    with open_session(long_run=True) as spark:
        for run in runs:
            analyze(run, spark=spark, on_progress=lambda _: None)


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
