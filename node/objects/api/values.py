"""The values of calls, and their encoding: data, and only data.

Values are None, bool, int, float, str, bytes, list, tuple, dict, references, names of groups, and proxies; exactly
these types, no subclasses (an enum or a named tuple would arrive as something else). An object that lives in a space
travels as its proxy. Nothing received is ever run, imported or looked up by a received name, except that the class of a
proxy is looked up among the Remote classes that exist here.

    value = tag (1 byte) and:  nothing                                None, False, True
                               length (1), two's complement           int
                               8 bytes                                float (IEEE 754)
                               length (4), bytes                      str (UTF-8), bytes
                               count (4), values                      list, tuple
                               count (4), keys and values             dict, in its order
                               8 bytes                                Reference, GroupId (their words)
                               shape (1), count (1), words, length (1), name of the class      pointer: a proxy

All integers are big-endian. Decoders assume that an enemy wrote the bytes: RemoteError TRUNCATED, BAD_LENGTH or
MALFORMED, in time that grows with the bytes alone. Each value has one encoding, and no other is accepted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from node.errors import DropReason, RemoteError
from node.objects.addresses import GroupId, Reference
from node.objects.api.errors import NotAValue

MAX_SIZE_BYTES = 48 * 1024
"""Most bytes of one encoded value: with its addresses it must fit a datagram."""
MAX_DEPTH = 32
"""Deepest nesting of containers."""
MAX_INT_BYTES = 128
MAX_ENTRIES = 4096
"""Most entries of one dict: keys that an enemy chose to collide cost the square of their number."""
MAX_POINTER_WORDS = 255
MAX_NAME_BYTES = 255


class Pointer(NamedTuple):
    """A proxy as data: the shape of its callee (a number for each kind of proxy), the words that name the callee, and
    the name of the class whose methods the proxy has."""

    shape: int
    words: tuple[int, ...]
    kind: str


Bind = Callable[[Pointer], object]
"""Makes a proxy of a received pointer; raises RemoteError when no proxy has such a pointer."""


class Pointed:
    """The base of classes that travel as a pointer: proxies, and objects that have one."""

    __slots__ = ()

    @property
    def pointer(self) -> Pointer:
        """The pointer. NotAValue when there is none (yet)."""
        raise NotImplementedError

    @property
    def shared(self) -> object:
        """The value that a callee in the same space gets: a proxy."""
        return self


def encode_value(value: object) -> bytes:
    """The encoding of `value`. NotAValue when it is no data, nests deeper than MAX_DEPTH, or takes more than
    MAX_SIZE_BYTES."""
    out = bytearray()
    _encode(value, out, 0)
    if len(out) > MAX_SIZE_BYTES:
        raise NotAValue(f"{len(out)} bytes of values are more than the {MAX_SIZE_BYTES} that a message carries")
    return bytes(out)


def decode_value(data: bytes, bind: Bind) -> object:
    """The value whose encoding fills `data`; `bind` makes its proxies. RemoteError for anything else."""
    if len(data) > MAX_SIZE_BYTES:
        raise RemoteError(DropReason.BAD_LENGTH, f"{len(data)} bytes of values")
    reader = _Reader(data, bind)
    value = reader.value(0)
    if reader.at != len(data):
        raise RemoteError(DropReason.BAD_LENGTH, f"{len(data) - reader.at} bytes behind a value")
    return value


def copy_value(value: object) -> object:
    """The value that the other side would decode, made without encoding: no container in it is shared. NotAValue as for
    encode_value, by the same measure."""
    if _is_plain(value) or (type(value) is tuple and len(value) <= _FEW and all(map(_is_plain, value))):
        return value
    copier = _Copier()
    copied = copier.copy(value, 0)
    if copier.most > MAX_SIZE_BYTES:
        encode_value(value)  # measures exactly, and raises
    return copied


def _is_plain(value: object) -> bool:
    """Whether a value is small and immutable, as most arguments are. A short cut: other values are copied."""
    kind = type(value)
    if kind is int:
        return -_LONG < value < _LONG  # type: ignore[operator]  # an int
    if kind is str:
        return len(value) <= _SHORT and value.isascii()  # type: ignore[arg-type, attr-defined]  # a str
    return kind in _UNCHANGING


def _encode(value: object, out: bytearray, depth: int) -> None:
    encode = _ENCODERS.get(type(value))
    if encode is not None:
        encode(value, out, depth)
    elif isinstance(value, Pointed):
        _encode_pointer(value.pointer, out)
    else:
        kind = type(value).__name__
        raise NotAValue(
            f"a {kind} is no value: messages carry None, bool, int, float, str, bytes, list, tuple, dict, proxies"
        )
    if len(out) > 2 * MAX_SIZE_BYTES:  # a list that holds itself twice must not fill the memory
        raise NotAValue(f"more than the {MAX_SIZE_BYTES} bytes of values that a message carries")


def _encode_none(_: Any, out: bytearray, __: int) -> None:
    out.append(_NONE)


def _encode_bool(value: bool, out: bytearray, _: int) -> None:
    out.append(_TRUE if value else _FALSE)


def _encode_int(value: int, out: bytearray, _: int) -> None:
    size = int_size(value)
    if size > MAX_INT_BYTES:
        raise NotAValue(f"an int of {size} bytes is longer than the {MAX_INT_BYTES} that a message carries")
    out.append(_INT)
    out.append(size)
    out += value.to_bytes(size, "big", signed=True)


def int_size(value: int) -> int:
    """Number of bytes of the shortest two's complement."""
    return ((value if value >= 0 else ~value).bit_length() >> 3) + 1


def _encode_float(value: float, out: bytearray, _: int) -> None:
    out += _FLOAT_STRUCT.pack(_FLOAT, value)


def _encode_str(value: str, out: bytearray, _: int) -> None:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise NotAValue(f"a str that is no text: {error}") from None
    out += _COUNTED.pack(_STR, len(data)) + data


def _encode_bytes(value: bytes, out: bytearray, _: int) -> None:
    out += _COUNTED.pack(_BYTES, len(value)) + value


def _encode_elements(values: list[object] | tuple[object, ...], out: bytearray, depth: int) -> None:
    _check_depth(depth)
    out += _COUNTED.pack(_LIST if type(values) is list else _TUPLE, len(values))
    for value in values:
        _encode(value, out, depth + 1)


def _encode_dict(value: dict[object, object], out: bytearray, depth: int) -> None:
    _check_depth(depth)
    _check_entries(value)
    out += _COUNTED.pack(_DICT, len(value))
    for key, content in value.items():
        _encode(key, out, depth + 1)
        _encode(content, out, depth + 1)


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise NotAValue(f"containers nest deeper than {MAX_DEPTH}")


def _check_entries(value: dict[object, object]) -> None:
    if len(value) > MAX_ENTRIES:
        raise NotAValue(f"a dict of {len(value)} entries has more than the {MAX_ENTRIES} that a message carries")


def _encode_word(value: Reference | GroupId, out: bytearray, _: int) -> None:
    out += _WORD.pack(_REFERENCE if type(value) is Reference else _GROUP, value.word)


def _encode_pointer(pointer: Pointer, out: bytearray) -> None:
    name = pointer.kind.encode()
    if len(name) > MAX_NAME_BYTES or len(pointer.words) > MAX_POINTER_WORDS:
        raise NotAValue(f"a proxy of {len(pointer.words)} objects of class {pointer.kind} is too large for a message")
    out += bytes((_POINTER, pointer.shape, len(pointer.words)))
    out += struct.pack(f">{len(pointer.words)}Q", *pointer.words)
    out.append(len(name))
    out += name


class _Reader:
    """A decoder; `at` is the position of the next byte."""

    def __init__(self, data: bytes, bind: Bind) -> None:
        self._data = data
        self._bind = bind
        self.at = 0

    def value(self, depth: int) -> object:
        tag = self._byte()
        if tag == _NONE:
            return None
        if tag == _INT:
            return self._int()
        if tag in _TEXTS:
            return self._text(tag)
        if tag in _CONTAINERS:
            return self._container(tag, depth)
        if tag in (_FALSE, _TRUE):
            return tag == _TRUE
        if tag == _FLOAT:
            return _DOUBLE.unpack(self._take(8))[0]
        if tag in (_REFERENCE, _GROUP):
            word = int.from_bytes(self._take(8))
            return Reference.of_word(word) if tag == _REFERENCE else GroupId.of_word(word)
        if tag == _POINTER:
            return self._pointer()
        raise RemoteError(DropReason.MALFORMED, f"a value with the tag {tag}")

    def _byte(self) -> int:
        at = self.at
        if at >= len(self._data):
            raise RemoteError(DropReason.TRUNCATED, "a value ends a byte too early")
        self.at = at + 1
        return self._data[at]

    def _take(self, size: int) -> bytes:
        taken = self._data[self.at : self.at + size]
        if len(taken) < size:
            raise RemoteError(DropReason.TRUNCATED, f"a value ends {size - len(taken)} bytes too early")
        self.at += size
        return taken

    def _int(self) -> int:
        size = self._byte()
        value = int.from_bytes(self._take(size), signed=True)
        if size > MAX_INT_BYTES or int_size(value) != size:
            raise RemoteError(DropReason.MALFORMED, f"an int of {size} bytes")
        return value

    def _text(self, tag: int) -> str | bytes:
        data = self._take(int.from_bytes(self._take(4)))
        if tag == _BYTES:
            return data
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise RemoteError(DropReason.MALFORMED, f"a str that is no text: {error}") from None

    def _container(self, tag: int, depth: int) -> object:
        if depth >= MAX_DEPTH:
            raise RemoteError(DropReason.MALFORMED, f"containers nest deeper than {MAX_DEPTH}")
        count = int.from_bytes(self._take(4))
        if count > len(self._data) - self.at:  # each takes a byte at least
            raise RemoteError(DropReason.TRUNCATED, f"{count} values in {len(self._data) - self.at} bytes")
        if tag == _DICT:
            return self._dict(count, depth)
        values = [self.value(depth + 1) for _ in range(count)]
        return values if tag == _LIST else tuple(values)

    def _dict(self, count: int, depth: int) -> dict[object, object]:
        if count > MAX_ENTRIES:
            raise RemoteError(DropReason.MALFORMED, f"a dict of {count} entries")
        made: dict[object, object] = {}
        for _ in range(count):
            key = self.value(depth + 1)
            content = self.value(depth + 1)
            try:
                made[key] = content
            except TypeError:
                raise RemoteError(DropReason.MALFORMED, f"a {type(key).__name__} cannot be a key") from None
        if len(made) != count:
            raise RemoteError(DropReason.MALFORMED, "a dict with a key twice")
        return made

    def _pointer(self) -> object:
        shape, count = self._take(2)
        words = struct.unpack(f">{count}Q", self._take(8 * count))
        name = self._take(self._byte())
        try:
            return self._bind(Pointer(shape, words, name.decode()))
        except UnicodeDecodeError:
            raise RemoteError(DropReason.MALFORMED, "a proxy of a class without a name") from None


class _Copier:
    """Copies, and adds up an upper bound of the encoded size."""

    def __init__(self) -> None:
        self.most = 0

    def copy(self, value: Any, depth: int) -> object:
        kind = type(value)
        if kind is list or kind is tuple:
            return self._elements(value, kind, depth)
        if kind is dict:
            return self._dict(value, depth)
        if _is_plain(value):
            self.most += _MOST_BYTES + (len(value) if kind is str else 0)
            return value
        if kind is bytes:
            self.most += _MOST_BYTES + len(value)
            return value
        probe = bytearray()
        _encode(value, probe, depth)  # a rare type, or no value
        self.most += len(probe)
        return value.shared if isinstance(value, Pointed) else value

    def _elements(self, value: Any, kind: type, depth: int) -> object:
        self._enter(value, depth)
        kinds = set(map(type, value))
        if kinds <= _UNCHANGING or (kinds == {int} and min(value) > -_LONG and max(value) < _LONG):
            self.most += _MOST_BYTES * len(value)
            return kind(value)
        return kind([self.copy(one, depth + 1) for one in value])

    def _dict(self, value: Any, depth: int) -> dict[object, object]:
        _check_entries(value)
        self._enter(value, depth)
        return {self.copy(key, depth + 1): self.copy(content, depth + 1) for key, content in value.items()}

    def _enter(self, value: Any, depth: int) -> None:
        _check_depth(depth)
        self.most += _MOST_BYTES
        if self.most > _SURELY_TOO_MUCH or len(value) > MAX_SIZE_BYTES:  # before a knot of lists fills the memory
            raise NotAValue(f"more than the {MAX_SIZE_BYTES} bytes of values that a message carries")


_NONE, _FALSE, _TRUE, _INT, _FLOAT, _STR, _BYTES, _LIST, _TUPLE, _DICT, _REFERENCE, _GROUP, _POINTER = range(13)
_FEW, _SHORT, _LONG = 16, 1024, 1 << 63
_TEXTS = frozenset({_STR, _BYTES})
_CONTAINERS = frozenset({_LIST, _TUPLE, _DICT})
_DOUBLE = struct.Struct(">d")
_FLOAT_STRUCT = struct.Struct(">Bd")
_COUNTED = struct.Struct(">BI")
_WORD = struct.Struct(">BQ")
_UNCHANGING = frozenset({type(None), bool, float, Reference, GroupId})
_MOST_BYTES = 10
"""Most bytes of a plain value, without the characters of a text; and of a container, without its elements."""
_SURELY_TOO_MUCH = _MOST_BYTES * MAX_SIZE_BYTES
_ENCODERS: dict[type, Callable[[Any, bytearray, int], None]] = {
    type(None): _encode_none,
    bool: _encode_bool,
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: _encode_bytes,
    list: _encode_elements,
    tuple: _encode_elements,
    dict: _encode_dict,
    Reference: _encode_word,
    GroupId: _encode_word,
}
