"""Files of directories that may be somebody else's work, such as an archive's: read within bounds, replaced at once.

A fresh file is made under a name that nobody can guess, so no link that lies there is followed.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 4 << 20
"""Of a file that is parsed as one: no more than a second's work. A manifest has some 100 KiB."""


def read_json(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Raises OSError; ValueError for what is no JSON, nested too deep, or larger than `max_bytes`."""
    return parse_json(read_text(path, errors="strict", max_bytes=max_bytes))


def read_text(path: Path, *, errors: str = "replace", max_bytes: int = MAX_BYTES) -> str:
    """`errors`: of the decoding. Raises OSError; ValueError for what is larger than `max_bytes`, or no plain file."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no plain file")
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes >> 20} MiB, which no run writes")
    return content.decode("utf-8", errors)


def parse_json(text: str) -> Any:
    """Raises ValueError also for what is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends well, and is removed otherwise: a reader sees
    the old one or the whole new one. Raises OSError.
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
    """Raises OSError; ValueError for a number that JSON has not, such as NaN."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with replacing(path) as file:
        # A name of a file need not be UTF-8; JSON has an escape for what of it is not.
        file.write(text.encode("utf-8", "backslashreplace"))


def _without_waiting(path: str, flags: int) -> int:
    """A pipe would keep its reader until somebody writes."""
    return os.open(path, flags | os.O_NONBLOCK)
