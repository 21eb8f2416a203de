"""Command line of the collector.

    python -m collector --output capture.pcapng --ports @ports.json --ifindex-base 100000 --comment '{"run": "…"}'

It reports in JSON lines on standard output: `ready`, `status` each second, `error`, `stopped`. It ends at a line
`stop`, at the end of standard input, at SIGTERM or SIGINT. Exit codes: 0 all recorded; 1 recording ended early (the
capture so far is kept); 2 wrong use. `orderbed info capture.pcapng` shows the contents of a capture.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from collector.collect import Recording, record
from collector.pcapng import Port
from collector.records import CaptureError
from collector.ring import BLOCK_BYTES, BLOCKS, MAX_SNAP_LENGTH

EXIT_GOOD, EXIT_INCOMPLETE, EXIT_WRONG_USE = 0, 1, 2
MIN_SNAP_LENGTH = 78
"""Least snap length: a smaller one would cut the headers of Orderbed's datagrams."""


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        recording = _recording(_parser().parse_args(arguments))
        return EXIT_GOOD if record(recording, commands=sys.stdin.fileno(), report=_report) else EXIT_INCOMPLETE
    except CaptureError as error:
        _report({"event": "error", "message": str(error)})
        return EXIT_WRONG_USE
    except BrokenPipeError:
        # The parent process is gone, and the capture is already closed. Nothing reads the output any more.
        sys.stdout = None
        return EXIT_INCOMPLETE


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CaptureError(f"{message}; see python -m collector --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m collector", description="Records the frames of switch ports as pcapng.")
    parser.add_argument("--output", type=Path, required=True, help="the capture file; must not exist")
    parser.add_argument(
        "--ports", required=True, help='JSON, or @file: [{"ifindex": 100000, "name": "p1/n1", "mac": "02:…"}]'
    )
    parser.add_argument("--ifindex-base", type=int, required=True, help="ports have interface indexes from here on")
    parser.add_argument("--comment", default="{}", help="a JSON object for the section header")
    parser.add_argument("--snaplen", type=int, default=MAX_SNAP_LENGTH, help="keep so many bytes of each frame")
    parser.add_argument("--ring-blocks", type=int, default=BLOCKS, help=f"of {BLOCK_BYTES} bytes (default {BLOCKS})")
    parser.add_argument("--block-bytes", type=int, default=BLOCK_BYTES, help=argparse.SUPPRESS)
    return parser


def _recording(options: argparse.Namespace) -> Recording:
    if not MIN_SNAP_LENGTH <= options.snaplen <= MAX_SNAP_LENGTH:
        raise CaptureError(f"--snaplen must lie between {MIN_SNAP_LENGTH} and {MAX_SNAP_LENGTH}")
    if options.ring_blocks < 2:
        raise CaptureError("--ring-blocks must be at least 2")
    comment = _json(options.comment, "--comment")
    if not isinstance(comment, dict):
        raise CaptureError("--comment must be a JSON object")
    return Recording(
        output=options.output,
        ports=_ports(options.ports),
        ifindex_base=options.ifindex_base,
        comment=comment,
        snap_length=options.snaplen,
        blocks=options.ring_blocks,
        block_bytes=options.block_bytes,
    )


def _ports(text: str) -> tuple[Port, ...]:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except OSError as error:
            raise CaptureError(f"--ports: {text[1:]} cannot be read: {error.strerror}") from None
    entries = _json(text, "--ports")
    if not isinstance(entries, list):
        raise CaptureError("--ports must be a JSON list of objects with ifindex and name")
    return tuple(_port(entry) for entry in entries)


def _port(entry: Any) -> Port:
    try:
        ifindex, name, mac = entry["ifindex"], entry["name"], entry.get("mac", "")
    except (TypeError, KeyError, AttributeError):
        raise CaptureError(f"--ports: {json.dumps(entry)} needs ifindex and name") from None
    if not isinstance(ifindex, int) or not isinstance(name, str) or not name or not _is_mac(mac):
        raise CaptureError(f"--ports: {json.dumps(entry)} needs a number as ifindex, a name, and a MAC if any")
    return Port(ifindex=ifindex, name=name, mac=mac)


def _is_mac(text: Any) -> bool:
    if not isinstance(text, str):
        return False
    parts = text.split(":")
    return not text or (len(parts) == 6 and all(len(p) == 2 and set(p) <= set("0123456789abcdefABCDEF") for p in parts))


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"{option} is not JSON: {error}") from None


def _report(event: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
