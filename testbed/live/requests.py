"""Requests to a testbed over its socket, and their validation. A request is read as if an attacker had written it.

Keys and error messages are those of experiment files, so that a user learns them once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from testbed.spec.raw import RawCut, RawImpair, RawRestore, RawTargets
from topologies.formats.errors import InputError, did_you_mean
from topologies.formats.schema import RawBlock, Text, validated
from topologies.formats.units import shown
from topologies.formats.yaml_source import Document

MAX_WORD_BYTES = 128 * 1024
"""Largest argument that Linux accepts (MAX_ARG_STRLEN)."""

MAX_WORDS = 4096
MAX_SIZE = 0xFFFF
"""Most rows or columns of a terminal."""


def parse_word(given: object) -> str:
    """A word that can be an argument or a value in an environment."""
    if not isinstance(given, str) or len(given.encode("utf-8", "surrogatepass")) >= MAX_WORD_BYTES or "\0" in given:
        raise ValueError(f"expected a text of less than {MAX_WORD_BYTES // 1024} KiB without null, got {shown(given)}")
    return given


def parse_words(given: object) -> list[str]:
    """A command of at least one word, its program."""
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_WORDS:
        raise ValueError(f"expected a command of 1 to {MAX_WORDS} words")
    words = [parse_word(word) for word in given]
    if not words[0]:
        raise ValueError("expected a program as the first word of the command, got nothing")
    return words


def parse_environment(given: object) -> dict[str, str]:
    """Environment variables: values by name."""
    if not isinstance(given, dict) or len(given) > MAX_WORDS:
        raise ValueError(f"expected a block of at most {MAX_WORDS} variables")
    for name in given:
        if not name or "=" in parse_word(name):
            raise ValueError(f"expected the name of a variable, got {shown(name)}")
    return {name: parse_word(value) for name, value in given.items()}


Words = Annotated[list[str], PlainValidator(parse_words)]
Environment = Annotated[dict[str, str], PlainValidator(parse_environment)]
Word = Annotated[str, PlainValidator(parse_word)]


class AskNothing(RawBlock):
    """A request without parameters."""


class AskNode(RawBlock):
    """A request about one node."""

    node: Text = Field(description="a node such as p1/n1")


class AskExec(RawBlock):
    """A request to run a command in a node."""

    node: Text = Field(description="a node such as p1/n1")
    argv: Words = Field(description="the command and its arguments")
    environment: Environment = Field({}, description="variables on top of a plain environment")
    terminal: bool = Field(False, description="whether descriptor 0 is a terminal that becomes its own")
    directory: Word = Field("/", description="where it starts")


class AskCapture(RawBlock):
    """A request to start a capture."""

    path: Word | None = Field(None, description="the file; none: in the record")


class AskImpair(RawBlock):
    impair: RawImpair = Field(description="what changes, and where")


class AskRestore(RawBlock):
    restore: RawRestore = Field(description="what goes back")


class AskCut(RawBlock):
    cut: RawCut = Field(description="who is cut off from whom")


VERBS: Mapping[str, type[RawBlock]] = {
    "describe": AskNothing,
    "nodes": AskNothing,
    "links": AskNothing,
    "counters": AskNothing,
    "capturing": AskNothing,
    "failure": AskNothing,
    "log": AskNode,
    "exec": AskExec,
    "impair": AskImpair,
    "restore": AskRestore,
    "cut": AskCut,
    "heal": AskNothing,
    "crash": RawTargets,
    "restart": RawTargets,
    "pause": RawTargets,
    "resume": RawTargets,
    "join": RawTargets,
    "leave": RawTargets,
    "start_capture": AskCapture,
    "stop_capture": AskNothing,
    "down": AskNothing,
}


def parse(request: Mapping[str, Any]) -> tuple[str, RawBlock]:
    """The verb of a request and its validated parameters. Raises InputError."""
    verb = request.get("do")
    if not isinstance(verb, str) or verb not in VERBS:
        hint = did_you_mean(verb, VERBS) if isinstance(verb, str) else ""
        raise InputError(f"{shown(verb)} is nothing that a testbed does{hint}")
    words = {key: value for key, value in request.items() if key != "do"}
    document = Document(source="", text="", value=words, lines={(): 1})
    try:
        return verb, validated(VERBS[verb], document)
    except InputError as error:
        raise InputError(error.sentence, key=_key_for_people(error.key, verb)) from None


def _key_for_people(key: str | None, verb: str) -> str | None:
    """The key as the user typed it: `loss` for `impair.loss`."""
    return None if key is None else key.removeprefix(f"{verb}.")
