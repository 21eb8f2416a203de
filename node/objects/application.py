"""The applications of object groups on a node: the load, or a program in each address space.

A program is a coroutine of user code, the same in the simulator and on real networks. All programs of a machine and the
methods of their objects run on one virtual asyncio loop (node.objects.api.loop) that has no thread, selector or clock
of its own: the host passes the time. So a program runs in virtual time in the simulator, the same in each run.

    Space.submit      -> a stamped Submission, in the order in which all spaces of the machine ask
    Deliver, news     -> the space of the receiving object, as soon as the host asks for the next request
    timers, sleeps    -> next_ns

Programs start when the load does and are cancelled, space by space, when it ends. Objects answer calls until the
machine stops. The application is idle when no task of a program is left, no call is under way and nothing is to be
sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from node.core import Membership, Submission
from node.effects import Deliver, Report
from node.errors import LocalError, RemoteError
from node.host.application import Application
from node.host.config import NodeConfig
from node.objects.addresses import OBJECTS_IN_SPACE, Addressing, GroupId, Operation, decode_news
from node.objects.api.calls import Body, Origin, Receiver, decode_body, encode_body
from node.objects.api.loop import VirtualLoop
from node.objects.api.space import Space
from node.objects.api.values import Bind
from node.objects.load import LoadApplication, group_numbers
from node.objects.parameters import LOAD, ObjectsParameters
from node.objects.programs import Program, Setting
from node.objects.programs.figures import FIGURES
from node.objects.programs.replicated import REPLICATED
from node.trace import STAMP_SIZE, Stamp, encode_stamp
from node.wire import Kind

PROGRAMS: dict[str, Program] = {program.name: program for program in (FIGURES, REPLICATED)}
"""Programs by name: values of the parameter `program` of the protocol `objects`."""


def application_of(config: NodeConfig, parameters: ObjectsParameters, space: int | None = None) -> Application:
    """The application that `parameters.program` names; `space`: of this address space alone, None: of all of the
    machine. LocalError when there is none, or when it cannot run in this run."""
    if parameters.program == LOAD:
        return LoadApplication(config, parameters, space)
    require_program(parameters)
    return ProgramApplication(config, parameters, PROGRAMS[parameters.program], space)


def require_program(parameters: ObjectsParameters) -> None:
    """LocalError when there is no program of that name."""
    given, known = parameters.program, (LOAD, *PROGRAMS)
    if given not in known:
        close = get_close_matches(given[:64], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise LocalError(f"no program is called {given[:64]!r}; {hint}")


class ProgramApplication(Application):
    """The application of one incarnation of a machine: its address spaces (or one of them), and in each of them a
    program."""

    hears = answers = True

    def __init__(
        self, config: NodeConfig, parameters: ObjectsParameters, program: Program, space: int | None = None
    ) -> None:
        us = config.membership
        super().__init__(us)
        self._program = program
        self._loop = VirtualLoop()
        numbers = range(parameters.spaces) if space is None else (space,)
        self._carriers = {number: _Carrier(self) for number in numbers}
        self._spaces = {
            number: Space(carrier, self._loop, member=us.member, incarnation=us.incarnation, number=number)
            for number, carrier in self._carriers.items()
        }
        self._settings = [self._setting(us, parameters, number) for number in numbers]
        for setting in self._settings:
            program.require(setting)
        self._programs: list[asyncio.Task[None]] = []
        self._inbox: deque[Deliver] = deque()
        self._outbox: deque[tuple[int, Submission]] = deque()
        """Submissions of the spaces, each with its number; 0: it has none."""
        self._numbered = 0
        self._groups = group_numbers(parameters, space)
        self._reports: list[Report] = []
        self._is_wanted = False
        """Whether programs are to start as soon as the host asks for a request."""

    def begin(self) -> None:
        self._is_wanted = True

    def end(self) -> None:
        """Cancel the programs, in the order of their spaces."""
        self._is_wanted = False
        for task in self._programs:
            task.cancel()

    @property
    def is_idle(self) -> bool:
        """Whether no program is at work, no call under way, and nothing on its way in or out."""
        is_moving = self._programs or self._inbox or self._outbox
        return not is_moving and all(space.is_idle for space in self._spaces.values())

    def next_ns(self, *, can_submit: bool) -> int | None:
        del can_submit  # requests that the core does not take yet wait in the queue
        if self._is_wanted or self._inbox or (self._outbox and not self.is_full):
            return 0
        return self._loop.next_timer_ns()

    def request(self, elapsed_ns: int, *, can_submit: bool) -> Stamp | None:
        """Run the loop; then queue one submission of the spaces, in the order in which they were made."""
        del can_submit
        if elapsed_ns < 0:
            return None
        self._run(elapsed_ns)
        while self._outbox and not self.is_full:
            number, submission = self._outbox.popleft()
            self.queue.append(submission)
            if number:
                return self.next_stamp()
        return None

    def take(self, effect: Deliver, elapsed_ns: int) -> None:
        del elapsed_ns
        self._inbox.append(effect)

    def reports(self) -> Sequence[Report]:
        told, self._reports = self._reports, []
        return told

    def note_time(self, elapsed_ns: int) -> None:
        """Note the lag: a timer that is due while the queue is full goes off late."""
        due_ns = self._loop.next_timer_ns()
        if self.is_full and due_ns is not None:
            self.note_lag(max(0, elapsed_ns - due_ns))

    def submit(self, submission: Submission, *, is_numbered: bool) -> int:
        """Take a submission of a space, and put the stamp in front of the payload. Returns its number."""
        if not is_numbered:
            self._outbox.append((0, submission))
            return 0
        self._numbered += 1
        stamp = Stamp(origin=self._us.member, incarnation=self._us.incarnation, number=self._numbered)
        stamped = replace(submission, payload=encode_stamp(stamp) + submission.payload)
        self._outbox.append((self._numbered, stamped))
        return self._numbered

    def next_group(self) -> GroupId:
        """A name for one more group of this incarnation, kept in its sub-network."""
        return GroupId(self._us.partition, self._us.member, self._us.incarnation, next(self._groups))

    def _run(self, elapsed_ns: int) -> None:
        while self._inbox:
            self._hand_in(self._inbox.popleft())
        if self._is_wanted:
            self._is_wanted = False
            for space, setting in zip(self._spaces.values(), self._settings, strict=True):
                self._programs.append(space.start(self._program.main(space, setting)))
        self._loop.run_ready(elapsed_ns)
        if self._programs and any(task.done() for task in self._programs):
            self._look_after_programs()

    def _hand_in(self, effect: Deliver) -> None:
        """Hand a delivery to its space. A RemoteError, the fault of the sender, is reported as a drop, and nothing has
        changed."""
        space = effect.place // OBJECTS_IN_SPACE
        try:
            self._carriers[space].hand_in(effect, self._spaces[space].bind)
        except RemoteError as error:
            self._reports.append(Report(code=error.reason, member=effect.origin, value=len(effect.payload)))

    def _look_after_programs(self) -> None:
        """A program may return or be cancelled; any other end is a mistake that ends the node."""
        done = [task for task in self._programs if task.done()]
        self._programs = [task for task in self._programs if not task.done()]
        for task in done:
            if not task.cancelled():
                task.result()

    def _setting(self, us: Membership, parameters: ObjectsParameters, space: int) -> Setting:
        return Setting(
            membership=us,
            space=space,
            spaces=parameters.spaces,
            options=parameters.options,
            report=lambda report: self._reports.append(report),
            now_ns=lambda: self._loop.now_ns,
        )


class _Carrier:
    """The Transport of one space."""

    def __init__(self, application: ProgramApplication) -> None:
        self._application = application
        self._receiver: Receiver | None = None

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def submit(self, addressing: Addressing, body: Body) -> int:
        if addressing.operation is Operation.CREATE:
            addressing = replace(addressing, group=self._application.next_group())
        submission = Submission(payload=encode_body(body), words=addressing.words, place=addressing.caller.number)
        is_told = addressing.operation in (Operation.APPEAR, Operation.VANISH)
        return self._application.submit(submission, is_numbered=not is_told)

    def hand_in(self, effect: Deliver, bind: Bind) -> None:
        """Hand in a delivery. RemoteError, before anything has changed: no honest sender sends it."""
        assert self._receiver is not None
        if effect.inner is Kind.OBJECTS_NEWS:
            self._receiver.on_news(effect.place, effect.seq, decode_news(effect.payload))
        else:
            body = decode_body(effect.payload[STAMP_SIZE:], bind)
            self._receiver.on_deliver(effect.place, body, Origin(effect.origin, effect.incarnation))
