"""Container entry: read one node's configuration from the first line of standard input, run the driver.

Exit codes: 0 after an orderly end, 1 after an unexpected exception, 2 for a configuration that cannot be used.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from functools import partial

from node.core import Core
from node.errors import LocalError
from node.host.application import Application
from node.host.config import NodeConfig, parse
from node.host.driver import Driver, new_loop, say
from node.registry import PROTOCOLS, ProtocolEntry

MAX_LINE_BYTES = 8 * 2**20


def main() -> int:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_live())


async def _live() -> int:
    lines = await _standard_input()
    line = await lines.readline()
    try:
        config = parse(line.decode("utf-8", "replace"))
        entry = _entry(config)
        parts = entry.parts_for(config, line, time.monotonic_ns())
        if parts is None:
            core, application = _incarnation(entry, config)
        else:
            core, application = parts.core, None
        # Objects that exist now live as long as the process: the collector need not visit them again.
        gc.freeze()
        driver = Driver(
            config,
            core,
            say,
            traces_receipts=entry.traces_receipts,
            application=application,
            parts=parts,
            follow=partial(_incarnation, entry) if entry.returns and parts is None else None,
        )
        return await driver.run(lines)
    except LocalError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"the network of this node cannot be used: {error}")


def _incarnation(entry: ProtocolEntry, config: NodeConfig) -> tuple[Core, Application | None]:
    core = entry.build(membership=config.membership, parameters=config.parameters, seed=config.seed)
    return core, entry.application_for(config)


def _entry(config: NodeConfig) -> ProtocolEntry:
    entry = PROTOCOLS.get(config.protocol)
    if entry is None:
        raise LocalError(f"no protocol is called {config.protocol!r}; there are {', '.join(sorted(PROTOCOLS))}")
    return entry


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    return reader


def _refuse(sentence: str) -> int:
    say({"event": "error", "message": sentence})
    return 2


if __name__ == "__main__":
    sys.exit(main())
