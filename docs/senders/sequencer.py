"""The sequencer of the members beside it: every line that anybody sends goes to everybody, in one order.

sequencer.py PORT MEMBERS
"""

from __future__ import annotations

import asyncio
import sys


async def main(port: int, members: int) -> None:
    everybody: list[asyncio.StreamWriter] = []
    is_full = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        everybody.append(writer)
        if len(everybody) == members:
            is_full.set()
        await is_full.wait()
        async for line in reader:
            for one in everybody:
                one.write(line)

    server = await asyncio.start_server(serve, "0.0.0.0", port)  # noqa: S104  # its network is a node's
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
