"""Changes of valid inputs, some of them blind and some that keep a structure, for a fuzzer of readers."""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Literal

from collector.index import RECORD_BYTES
from node.trace import RECORD, TRACE_HEADER
from node.wire import ENVELOPE, MESSAGE, WORD_SIZE, table_struct

MAX_CHANGES = 6
NUMBERS = tuple(
    value.to_bytes(size, order)
    for size in (1, 2, 4, 8)
    for value in (0, 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1)
    for order in ("big", "little")
)
"""Limits of fields of lengths, counts and times: largest, smallest, and around the sign bit."""
DEEP = (b"[" * 100_000, b"[" * 20_000 + b"]" * 20_000, b'{"a":' * 20_000, b'{"a":' * 900 + b"1" + b"}" * 900)
SCALARS = tuple(
    text.encode()
    for text in (
        "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "9" * 400, "-1", "0", "-0.0", "1e-400", "1.5",
        "9223372036854775808", "18446744073709551616", "4294967296", "null", "true", "[]", "{}", '""', '"\\ud800"',
        '"\\u0000"', '"x"', '"\u00b2"', '"\u202e"', '"' + "x" * 20_000 + '"', "[1,[2,{}]]",
        '{"a":{"b":[null]}}', "[[]]",
    )
)  # fmt: skip
"""Values of JSON and of YAML that few readers expect."""
WORDS = (
    *SCALARS,
    *(
        text.encode()
        for text in (
            "[", "]", "{", "}", "[" * 2000, "- " * 200, '{"a":' * 500, ": ", "\n", "\t", "'", '"', "&a", "*a", "!!x",
            "%", "\\ud800", "\u2028", "\u202e", "\ufeff", "\u00b2", "\u0661", "\U0001f600", "x" * 20_000, "p1/n1",
            "p9/*", "p1/*", "*", "0 s", "1e9 s", "100 %", "1_000", "0x10", "0o7", "2001-01-01", "{each members ,}",
            "\0", "../../etc/passwd", "---", "...", "? ", "|", ">", "<<: *a", "a: &a [*a, *a]",
            "!!python/object/apply:os.system [id]", "%YAML 1.1\n---\n", "&a [&b [*a, *b], *b]",
        )
    ),
    b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf",
)  # fmt: skip
TOKEN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|[^\s:,\[\]{}"\']+')
"""A key or a value of JSON or YAML."""
_ENVELOPE, _MESSAGE = table_struct(ENVELOPE).size, table_struct(MESSAGE).size
_TRACE_HEADER, _RECORD = table_struct(TRACE_HEADER).size, table_struct(RECORD).size


def changed(samples: Sequence[bytes], words: Sequence[bytes], draw: random.Random) -> bytes:
    """A sample with a few changes. Half of the inputs keep its structure: in texts only keys and values change, in
    other bytes only numbers in place.
    """
    data = bytearray(draw.choice(samples))
    is_text = words is WORDS
    is_kept = draw.random() < 0.5
    if is_text and draw.random() < 0.005:
        _exchange(data, samples, DEEP, draw)
    for _ in range(draw.randint(1, MAX_CHANGES // 2 if is_kept else MAX_CHANGES)):
        if is_kept and is_text:
            _exchange(data, samples, SCALARS if draw.random() < 0.9 else words, draw)
        elif is_kept:
            _renumber(data, words, draw)
        else:
            _damage(data, samples, words, draw)
    return bytes(data)


def _exchange(data: bytearray, samples: Sequence[bytes], words: Sequence[bytes], draw: random.Random) -> None:
    """One key or value is replaced by a word, by one from elsewhere, or by a number near it. Keys are replaced
    by keys.
    """
    found = _anywhere(data, draw)
    if found is None:
        return
    choice = draw.randrange(2, 4) if data[found.end() : found.end() + 1] == b":" else draw.randrange(6)
    match choice:
        case 2:
            new = _token(data, draw)
        case 3:
            new = _token(draw.choice(samples), draw)
        case 4:
            digits = re.sub(rb"[^0-9]", b"", found[0])[:18]
            new = str(int(digits or b"0") + draw.choice((-1, 1, 2**31, 2**63))).encode()
        case _:
            new = draw.choice(words)
    data[found.start() : found.end()] = new


def _anywhere(text: bytes | bytearray, draw: random.Random) -> re.Match[bytes] | None:
    """A whole key or value: the first one of a line, of a block or after a comma or colon."""
    at = draw.randint(0, len(text))
    return TOKEN.search(text, max(text.rfind(mark, 0, at) for mark in (b",", b"{", b"[", b": ", b"\n")) + 1)


def _token(text: bytes | bytearray, draw: random.Random) -> bytes:
    found = _anywhere(text, draw)
    return found[0] if found else b""


def _renumber(data: bytearray, words: Sequence[bytes], draw: random.Random) -> None:
    """A byte, a bit or a number of up to 8 bytes is replaced; no byte is moved."""
    if not data:
        return
    match draw.randrange(4):
        case 0:
            data[draw.randrange(len(data))] = draw.randrange(256)
        case 1:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case 2:
            word = draw.choice(words)
            at = draw.randrange(len(data)) & -draw.choice((1, len(word)))
            data[at : at + len(word)] = word[: len(data) - at]
        case _:
            size = draw.choice((1, 2, 4, 8))
            order: Literal["big", "little"] = "big" if draw.random() < 0.5 else "little"
            at = draw.randrange(len(data)) & -draw.choice((1, size))
            field = data[at : at + size]
            most = 256 ** len(field)
            data[at : at + size] = ((int.from_bytes(field, order) + draw.randint(-9, 9)) % most).to_bytes(
                len(field), order
            )


def _damage(data: bytearray, samples: Sequence[bytes], words: Sequence[bytes], draw: random.Random) -> None:
    """Bytes are removed, doubled, cut off, or taken from another sample."""
    at, size = draw.randint(0, len(data)), draw.randint(1, 16)
    match draw.randrange(7):
        case 0 if data:
            data[draw.randrange(len(data))] = draw.randrange(256)
        case 1 if data:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case 2:
            del data[at : at + size]
        case 3:
            data[at:at] = data[at : at + size * draw.randint(1, 20)]
        case 4:
            word = draw.choice(words)
            data[at : at + len(word) * draw.randrange(2)] = word
        case 5:
            other = draw.choice(samples)
            begin = draw.randint(0, len(other))
            data[at:at] = other[begin : begin + size * 4]
        case _:
            del data[at + draw.randrange(200) :]


# In form: fields that are checked first are corrected, so that the later ones are reached.


def words_of(data: bytes) -> tuple[int, ...]:
    """As many words of 64 bits as there are."""
    count = len(data) // WORD_SIZE
    return struct.unpack(f">{count}Q", data[: WORD_SIZE * count])


def message_in_form(data: bytes) -> bytes:
    """A message of node.wire with the right counts of words and payload."""
    head, rest = bytearray(data[:_MESSAGE].ljust(_MESSAGE, b"\0")), data[_MESSAGE : _MESSAGE + 0xFFFF]
    words = min(int.from_bytes(head[8:10]), len(rest) // WORD_SIZE)
    head[1] &= 7
    head[3] = 0
    head[8:12] = words.to_bytes(2) + (len(rest) - WORD_SIZE * words).to_bytes(2)
    return bytes(head) + rest


def datagram_in_form(data: bytes) -> bytes:
    """A datagram of node.wire with its magic, its version and such a message."""
    head = data[:_ENVELOPE].ljust(_ENVELOPE, b"\0")
    return b"ob\x01\0" + head[4:] + message_in_form(data[_ENVELOPE:])


def trace_in_form(data: bytes) -> bytes:
    """A trace datagram with the right count of records."""
    head, rest = data[:_TRACE_HEADER].ljust(_TRACE_HEADER, b"\0"), data[_TRACE_HEADER:]
    count = min(len(rest) // _RECORD, 255)
    return b"ot\x02" + bytes((count,)) + head[4:] + rest[: _RECORD * count]


def index_in_form(data: bytes) -> bytes:
    """Records of collector.index with right checksums."""
    bodies = [data[at : at + RECORD_BYTES - 4] for at in range(0, len(data), RECORD_BYTES)]
    return b"".join(body + zlib.crc32(body).to_bytes(4, "little") for body in bodies)
