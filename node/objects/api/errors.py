"""Exceptions at the caller for calls that end without a value.

All of them are CallError. A callee's own exception comes as RemoteException: its type's name and its text, never an
object of the callee's choice.
"""

# ruff: noqa: N818 (these are the outcomes of calls, named as their handlers say it)

from __future__ import annotations

from node.errors import LocalError


class CallError(Exception):
    """A call has ended without a reply's value."""


class RemoteException(CallError):
    """The method raised: `type_name` is the exception's class name, `text` its text. A method that does not catch a
    RemoteException passes both on."""

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
    """This member's reply will not come. A call that needs only the first reply waits for the others instead."""


class DeadObject(NoReply):
    """The object has been destroyed, or never was."""


class Unreachable(NoReply):
    """The object's machine has ended, or was out of reach until it was given up."""


class CallTimeout(NoReply, TimeoutError):
    """The time-out of the call has passed. Whether the callee carries it out is not known."""


class EmptyGroup(CallError):
    """The group had no member when the call's turn came."""


class NoSuchGroup(EmptyGroup):
    """There is no such group, or the object that keeps it is gone."""


class TooFewMembers(CallError):
    """The caller asked for more replies than the call has members."""


class Aborted(CallError):
    """The call was atomic, and some member could not take it: none has."""


class Refused(CallError):
    """This machine is cut off from the machines that decide, or the request is against the rules: it is not carried
    out."""


class NotAValue(LocalError, TypeError):
    """A message was to carry something that is no data (see node.objects.api.values), or too much."""


class Overrun(LocalError):
    """The space waits for the answers to too many calls already: wait for some of them first."""
