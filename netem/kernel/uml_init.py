"""Init of the User-Mode Linux guest: mount, open the line to the conductor, run the agent. Standard library only.

The guest boots from the host's file system, so this is the same file and the same interpreter as on the host; the
kernel starts it as `python -ISB uml_init.py ROOT`. When the line ends, the guest halts.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tty

_LINE = "/dev/ttyS0"
_REBOOT_SYSCALL = {"x86_64": 169}
_REBOOT_MAGIC, _REBOOT_MAGIC2, _POWER_OFF = 0xFEE1DEAD, 672274793, 0x4321FEDC

libc = ctypes.CDLL(None, use_errno=True)


def main(root: str) -> None:
    """Serve requests; halts the guest when its line ends, and never returns."""
    sys.path.insert(0, root)
    from netem.kernel.agent import NetlinkAgent
    from netem.kernel.framing import ChannelClosedError, LineServer

    for kind, target in (("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run"), ("tmpfs", "/tmp")):  # noqa: S108
        if libc.mount(kind.encode(), target.encode(), kind.encode(), 0, None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)
    descriptor = os.open(_LINE, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    tty.setraw(descriptor)
    line, agent = LineServer(descriptor), NetlinkAgent()
    line.send(agent.perform({"do": "hello"}))
    try:
        while True:
            line.send(agent.perform(line.receive()))
    except (ChannelClosedError, OSError):
        return  # the conductor closed its end


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    finally:
        sys.stderr.flush()
        libc.syscall(_REBOOT_SYSCALL[os.uname().machine], _REBOOT_MAGIC, _REBOOT_MAGIC2, _POWER_OFF, None)
