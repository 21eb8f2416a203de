"""What a call can end with other than its reply: exceptions at the caller.

All of them are CallError. A callee's own exception comes as RemoteException: its type's name and its text, never an
object of the callee's choice.
"""

# ruff: noqa: N818 (these are the outcomes of calls, named as their handlers say it)

from __future__ import annotations

from node.errors import LocalError


class CallError(Exception):
    """A call has ended without a reply's value."""


class RemoteException(CallError):
    """The method raised: `type_name` is the exception's class name, `text` what it said. A method that lets such a
    one through passes both on."""

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}" if text else type_name)
        self.type_name = type_name
        self.text = text


class NoSuchMethod(CallError):
    """The callee's class exports no method of that name."""


class BadArguments(CallError):
    """The arguments do not fit the method's signature."""


class Deadlock(CallError):
    """The call waits for an object that waits for it: the callee is still handling the call that this one came from."""


class NoReply(CallError):
    """This member's reply will not come. A call that is content with the first reply waits for the others instead."""


class DeadObject(NoReply):
    """The object has been destroyed, or never was."""


class Unreachable(NoReply):
    """The object's machine has ended, or could not be reached for so long that it was given up."""


class CallTimeout(NoReply, TimeoutError):
    """The time-out of the call has passed. Whether the callee carries it out is not known."""


class EmptyGroup(CallError):
    """The group had no member when the call's turn came."""


class NoSuchGroup(EmptyGroup):
    """There is no such group, or its keeper is gone."""


class TooFewMembers(CallError):
    """The caller's mistake: more replies were asked for than the call has members."""


class Aborted(CallError):
    """The call was atomic, and some member could not take it: none has."""


class Refused(CallError):
    """This machine is cut off from those who decide, or what was asked is against the rules: it will not happen."""


class NotAValue(LocalError, TypeError):
    """Something that is not data (see node.objects.api.values), or too much of it, was to go into a message."""


class Overrun(LocalError):
    """The space waits for the answers to too many calls already: wait for some of them first."""
