"""`uml_start.py LINUX [ARGUMENT ...]`: start a guest on a processor with registers that its kernel cannot save.

User-Mode Linux saves the registers of its processes in a buffer of fixed size. The tiles of AMX do not fit, and the
host's kernel takes the whole set or none: the guest dies of "ptrace set fp regs failed, errno = 14" before its init
runs. Without the request for the extended set it falls back to the older one, which has no vector registers beyond SSE;
`netem.kernel.uml` keeps the guest's programs from using these. A script of its own, with the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER = 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
"""BPF: load a word, jump if it equals, return."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EINVAL = 22
_NUMBER_AT, _REQUEST_AT, _TYPE_AT = 0, 16, 32
"""Offsets in the data of a system call: its number, and the low halves of its first and third arguments."""
_PTRACE, _GETREGSET, _XSTATE = 101, 0x4204, 0x202


def main() -> None:
    program = (
        (_LOAD, 0, 0, _NUMBER_AT),
        (_EQUAL, 0, 5, _PTRACE),
        (_LOAD, 0, 0, _REQUEST_AT),
        (_EQUAL, 0, 3, _GETREGSET),
        (_LOAD, 0, 0, _TYPE_AT),
        (_EQUAL, 0, 1, _XSTATE),
        (_RETURN, 0, 0, _ERRNO | _EINVAL),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    calls = ((_PR_SET_NO_NEW_PRIVS, 1, 0), (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(head)))
    for option, *arguments in calls:
        if libc.prctl(option, *map(ctypes.c_ulong, arguments), ctypes.c_ulong(0), ctypes.c_ulong(0)):
            raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 (the guest's kernel, as netem.kernel.uml names it)


if __name__ == "__main__":
    main()
