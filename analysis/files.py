"""Files of directories from an untrusted source, such as an archive: bounded reads, atomic replacement.

A new file is created under a random name, so no prepared link is followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 4 << 20
"""Largest file that is parsed as a whole, in at most about a second. A manifest has some 100 KiB."""


def read_json(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Value of a JSON file. Raises OSError; ValueError for a file that is no JSON, nested too deep, or larger than
    `max_bytes`.
    """
    return parse_json(read_text(path, errors="strict", max_bytes=max_bytes))


def read_text(path: Path, *, errors: str = "replace", max_bytes: int = MAX_BYTES) -> str:
    """Text of a file. `errors`: of the decoding. Raises as `read_bytes`."""
    return read_bytes(path, max_bytes=max_bytes).decode("utf-8", errors)


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Content of a file. Raises OSError; ValueError for a file that is larger than `max_bytes`, or no plain file."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no plain file")
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes >> 20} MiB, which no run writes")
    return content


def is_there(path: Path) -> bool:
    """Whether there is such a file. False for a link to a name that is too long, for which pathlib raises."""
    try:
        return path.exists()
    except OSError:
        return False


def digest(path: Path) -> str:
    """Short digest of a text file, to tell it from another. Raises OSError, and ValueError as `read_text` does."""
    return hashlib.sha256(read_text(path).encode("utf-8")).hexdigest()[:16]


def is_of(summary: Mapping[str, Any], directory: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether a summary is of the run in its directory, and of its manifest as it is now; by the name only if it has no
    digest. Raises as `digest` does.
    """
    if "run" in summary and summary["run"] != manifest.get("run"):
        return False
    return "manifest" not in summary or summary["manifest"] == digest(directory / "manifest.json")


def parse_json(text: str) -> Any:
    """Value of a JSON text. Raises ValueError also for one that is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which replaces `path` when the block ends without an error and is removed otherwise: a reader
    sees the old file or the whole new one. Raises OSError.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def replace_json(path: Path, value: object) -> None:
    """Write a value as JSON. Raises OSError; ValueError for a number that JSON does not have, such as NaN."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with replacing(path) as file:
        # A file name need not be UTF-8; JSON has an escape for the other bytes.
        file.write(text.encode("utf-8", "backslashreplace"))


def _without_waiting(path: str, flags: int) -> int:
    """Open without blocking: opening a pipe would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)
