"""What an experiment file may say under `program`, word for word. `testbed.spec.programs` turns it into values."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Discriminator, Field, PlainValidator, Tag, WithJsonSchema

from topologies.formats.schema import Duration, OneOrMany, RawBlock, Size, Text, whole
from topologies.formats.units import shown

MAX_FILE_CHARACTERS = 2**18
MAX_PROCESSES = 2**22
READY_WITHIN_NS = 30 * 10**9
GRACE_NS = 5 * 10**9


def parse_word(given: object) -> str:
    """A text, or a number as it is written; `true` and `false` would be read as one thing and meant as another."""
    if isinstance(given, str):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool):
        return str(given)
    raise ValueError(f"expected a text, got {shown(given)}; put it in quotes")


def parse_content(given: object) -> str:
    """The text of a file."""
    if isinstance(given, str) and len(given) <= MAX_FILE_CHARACTERS:
        return given
    raise ValueError(f"expected a text of at most {MAX_FILE_CHARACTERS} characters, got {shown(given)}")


def parse_cpus(given: object) -> float:
    """Processors: 0.5 is half of one."""
    if isinstance(given, int | float) and not isinstance(given, bool) and 0.001 <= given <= 4096:
        return float(given)
    raise ValueError(f"expected a number of processors from 0.001 to 4096, such as 0.5, got {shown(given)}")


Word: TypeAlias = Annotated[str, PlainValidator(parse_word), WithJsonSchema({"type": ["string", "number"]})]
Content: TypeAlias = Annotated[str, PlainValidator(parse_content), WithJsonSchema({"type": "string"})]
Processors: TypeAlias = Annotated[
    float, PlainValidator(parse_cpus), WithJsonSchema({"type": "number", "minimum": 0.001, "maximum": 4096})
]
Several: TypeAlias = Annotated[list[Text], OneOrMany()]


def _form_of_file(given: object) -> str:
    return "from" if isinstance(given, dict) else "text"


def _form_of_command(given: object) -> str:
    return "words" if isinstance(given, list) else "line"


class RawFrom(RawBlock):
    """A file of the host's, copied into the node's directory."""

    from_: Text = Field(alias="from", description="its path, beside the experiment file; it is copied as it is")


class RawReady(RawBlock):
    """When a program counts as ready; one of port, line and after."""

    port: whole(1, 65535) | None = Field(  # type: ignore[valid-type]
        None, description="once it listens at this TCP port, or has this UDP port, such as 2379"
    )
    line: Text | None = Field(None, description="once a line of its output has this regular expression in it")
    after: Duration | None = Field(None, description="once this time has passed since its start, such as 1 s")
    within: Duration = Field(READY_WITHIN_NS, description="how long that may take, such as 30 s")


class RawStop(RawBlock):
    """How a program is ended at the end of a run."""

    signal: Text = Field("TERM", description="the signal that asks it to end, such as INT")
    grace: Duration = Field(GRACE_NS, description="how long it may take before it is killed, such as 5 s")


class RawLimits(RawBlock):
    """What a node's processes may take together."""

    memory: Size | None = Field(None, description="memory, such as 256 MiB")
    processes: whole(1, MAX_PROCESSES) | None = Field(None, description="processes and threads, such as 64")  # type: ignore[valid-type]
    cpus: Processors | None = Field(None, description="processors, such as 0.5")


Command: TypeAlias = Annotated[
    Annotated[Content, Tag("line")] | Annotated[list[Word], Tag("words")], Discriminator(_form_of_command)
]
File: TypeAlias = Annotated[
    Annotated[Content, Tag("text")] | Annotated[RawFrom, Tag("from")], Discriminator(_form_of_file)
]


class RawProgram(RawBlock):
    """A program of your own in some nodes, in place of ours (docs/programs.md)."""

    nodes: Several = Field(["*"], description="the nodes that run it, by selector, such as p1/*")
    command: Command | None = Field(
        None, description="the program and its arguments, split as a shell does, or a list; an image may have its own"
    )
    image: Text | None = Field(None, description="world docker: the image to run it in, such as quay.io/coreos/etcd")
    environment: dict[Text, Word] = Field({}, description="environment variables, such as {ETCD_LOG_LEVEL: warn}")
    files: dict[Text, File] = Field(
        {}, description="files by name in the node's own directory: a text, or {from: path} for a copy"
    )
    private: Several = Field(
        [], description="absolute directories that are the node's own and empty at first, such as /var/lib/corosync"
    )
    keep: bool = Field(True, description="whether its directories outlive a crash, as a disk does")
    ready: RawReady | None = Field(
        None, description="when it counts as ready: {port: 2379}, {line: regex} or {after: 1 s}; without: once started"
    )
    stop: RawStop | None = Field(None, description="how it is ended: signal and grace")
    cues: bool = Field(
        False, description="whether it is told start, drain and stop by lines on its standard input, as ours are"
    )
    may_end: bool = Field(False, description="whether it may end by itself, with exit code 0")
    member: bool | None = Field(
        None, description="whether it is a member of the group that is judged by its trace; true where it promises"
    )
    promises: Several = Field([], description="properties that are to be checked, such as [fifo, total_order]")
    limits: RawLimits | None = Field(None, description="memory, processes and processors that its node may take")


RawPrograms: TypeAlias = Annotated[list[RawProgram], OneOrMany()]
