"""Runtime directory of a testbed that is up: one per name, made exclusively, removed when its owner is dead.

    $XDG_RUNTIME_DIR/orderbed/NAME/    or /run/orderbed/NAME/, mode 0700
        owner        the server process (netem.owner.Owner)
        about.json   what it is (testbed.live.status.Description) and its names, once it is up
        control      the socket

The directory is made under another name with its owner in it and then renamed: a rename onto a directory that is not
empty fails, so of two concurrent testbeds one wins, and no directory is ever visible without its owner.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.files import read_json, replace_json
from netem.owner import Owner
from testbed.live.status import Description
from testbed.paths import live_root
from topologies.formats.errors import InputError, did_you_mean
from topologies.formats.schema import parse_title
from topologies.model import Topology

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeDirectory:
    """Directory of one name; it need not exist, nor hold a testbed."""

    name: str
    path: Path

    @classmethod
    def of(cls, name: str) -> RuntimeDirectory:
        """Directory of `name`. Raises InputError for an invalid name."""
        try:
            return cls(name=parse_title(name), path=live_root() / name)
        except ValueError as error:
            raise InputError(f"the name of a testbed: {error}") from None

    def take(self) -> None:
        """Make it for this process. Raises InputError when a testbed of this name is up, or it cannot be made."""
        fresh = self.path.with_name(f".{self.name}.{os.getpid()}")
        try:
            live_root().mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.mkdir(mode=0o700)
            (fresh / "owner").write_text(str(Owner.this_process()), encoding="ascii")
            self._move_in(fresh)
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be made ({error.strerror}): run the same command with sudo, or as root"
            ) from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)  # nothing is left here after a successful rename

    def release(self) -> None:
        """Remove it, if this process still owns it."""
        if self.is_ours():
            shutil.rmtree(self.path, ignore_errors=True)

    def is_ours(self) -> bool:
        """Whether this process still owns it: a user may have removed it, and another process then made it."""
        return self._owner() == Owner.this_process()

    def publish(self, description: Description, topology: Topology) -> None:
        """Write about.json: `description`, and names of partitions, nodes and links for the shell's completion."""
        names = {
            "partitions": {
                partition.name: [node.name.partition("/")[2] for node in partition.nodes]
                for partition in topology.partitions
            },
            "links": [link.name for link in topology.links],
        }
        replace_json(self.path / "about.json", description.as_json() | names)

    def description(self) -> Description | None:
        """Description of the testbed that is up here; None if none is, or not yet, or no longer."""
        if self.is_dead():
            return None
        try:
            return Description.from_json(read_json(self.path / "about.json"))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_dead(self) -> bool:
        """Whether its owner has certainly ended, or it has none."""
        owner = self._owner()
        return owner is None or owner.is_dead()

    def sweep(self) -> None:
        """Remove the directory of a dead owner. Two processes may try at once: the rename succeeds for one."""
        away = self.path.with_name(f".{self.name}.{os.getpid()}.dead")
        try:
            self.path.rename(away)
        except FileNotFoundError:
            return
        _tell_of_the_dead(away)
        shutil.rmtree(away, ignore_errors=True)

    @contextmanager
    def socket_path(self) -> Iterator[str]:
        """A path of the socket that fits into an address, however long the path of the directory is."""
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{directory}/control"
        finally:
            os.close(directory)

    def refuse_taken(self) -> None:
        """Raise InputError when a testbed of this name is up or coming up."""
        if not self.is_dead():
            raise InputError(
                f"a testbed called {self.name} is up already: take it down with `orderbed down {self.name}`, "
                "or give this one another name"
            )

    def _owner(self) -> Owner | None:
        try:
            return Owner.parse((self.path / "owner").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def _move_in(self, fresh: Path) -> None:
        for _attempt in range(_ATTEMPTS):
            try:
                fresh.rename(self.path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                self.refuse_taken()
                self.sweep()
            else:
                return
        raise OSError(errno.EBUSY, "somebody else takes it again and again")


def descriptions() -> list[Description]:
    """All testbeds that are up, by name. Removes directories of dead owners."""
    found = []
    for path in sorted(_entries()):
        directory = RuntimeDirectory(name=path.name, path=path)
        description = directory.description()
        if description is not None:
            found.append(description)
        elif directory.is_dead():
            directory.sweep()
    return found


def the_directory(name: str | None) -> RuntimeDirectory:
    """The directory of the testbed called `name`, or of the only one that is up. Raises InputError."""
    up = [one.name for one in descriptions()]
    if name is None and len(up) == 1:
        return RuntimeDirectory.of(up[0])
    if not up:
        raise InputError(none_up())
    if name is None:
        raise InputError(
            f"several testbeds are up: {', '.join(up)}; say which one, in a shell by --testbed NAME or ORDERBED_TESTBED"
        )
    if name not in up:
        hint = did_you_mean(name, up) or f"; up are {', '.join(up)}"
        raise InputError(f"no testbed called {name[:40]} is up{hint}")
    return RuntimeDirectory.of(name)


def none_up() -> str:
    """Sentence that no testbed is up, with the remedy. Root's testbeds are hidden from other users."""
    if os.geteuid() != 0:
        return "this user has no testbed, and root's are seen by root alone: run the same command with sudo, or as root"
    return "no testbed is up; make one with `orderbed up three-partitions -d`"


def _tell_of_the_dead(directory: Path) -> None:
    """Add to the log of a killed server that it was found dead."""
    try:
        about = Description.from_json(read_json(directory / "about.json"))
        with (about.directory / "server.log").open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  found dead: process {about.server_pid} was killed\n")
        (about.directory / ".reserve").unlink(missing_ok=True)
    except (OSError, ValueError, KeyError, TypeError):
        return  # it had not come up, or its record is gone


def _entries() -> list[Any]:
    try:
        return [path for path in live_root().iterdir() if not path.name.startswith(".") and path.is_dir()]
    except OSError:
        return []
