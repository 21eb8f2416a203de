"""An address space: the objects of a program, and their calls under way.

    space = Space(transport, asyncio.get_running_loop())
    counter = space.create(Counter())            # a proxy, typed as a Counter
    await counter.add(2)

Object number 1 of each space is its program itself, the code outside of all methods: it calls, and is never called.
Calls of one object (the program included) are sent in the order in which it makes them; replies go straight back. A
reply is taken only from a member of the call, once, and from the incarnation of the machine on which the member lives.

A space is used on one loop, by one thread. `on_deliver` and `on_news` may be called outside of the loop: nothing of a
program runs before the loop's next turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, cast

from node.errors import DropReason, LocalError, RemoteError
from node.objects.addresses import (
    MAX_NAME_BYTES,
    OBJECTS_IN_SPACE,
    Addressing,
    GroupId,
    News,
    NewsKind,
    Operation,
    Reference,
)
from node.objects.api.calls import Body, CallBody, CallId, NameBody, Origin, Outcome, ReplyBody, StateBody, Transport
from node.objects.api.errors import (
    Aborted,
    CallError,
    CallTimeout,
    EmptyGroup,
    NoSuchGroup,
    NotAValue,
    Overrun,
    Refused,
    Unreachable,
)
from node.objects.api.export import (
    Options,
    Proxy,
    Remote,
    Request,
    kind_name,
    kind_named,
    proxy_class,
    require_kind,
    require_state,
)
from node.objects.api.replies import Answer, Call, Replies
from node.objects.api.resident import ACTIVITY, Activity, Resident, StateComes, StateWanted
from node.objects.api.values import Pointed, Pointer

MAX_UNDER_WAY = 10_000
"""Most calls of one space that wait for an answer."""
SHAPE_OBJECT = 0

T = TypeVar("T")
K = TypeVar("K", bound=Remote)


class Ref(Proxy):
    """The proxy of one object."""

    __slots__ = ("reference", "space")
    _callee = "reference"

    def __init__(self, space: Space, reference: Reference) -> None:
        self.space = space
        self.reference = reference

    def begin(self, request: Request, replies: Replies[Any]) -> None:
        replies.members = (self.reference,)
        self.space.begin(request, replies)

    @property
    def pointer(self) -> Pointer:
        return Pointer(SHAPE_OBJECT, (self.reference.word,), kind_name(self.kind))

    def __repr__(self) -> str:
        member, incarnation, number = self.reference
        return f"<{self.kind.__name__} {number} of member {member}, incarnation {incarnation}>"


class _UnderWay:
    """A call that waits for answers: the owner of its Replies."""

    __slots__ = ("activity", "deadline", "is_awaited", "number", "replies", "space", "submission")

    def __init__(self, space: Space, number: int, replies: Replies[Any], activity: Activity) -> None:
        self.space = space
        self.number = number
        self.replies = replies
        self.activity = activity
        self.submission = 0
        self.deadline: asyncio.TimerHandle | None = None
        self.is_awaited = False

    def end(self) -> None:
        self.space.release(self)

    def wait(self) -> None:
        self.is_awaited = True
        self.space.break_cycles(self.activity)


class _Operation:
    """An operation that waits for news: the owner of its Call."""

    __slots__ = ("number", "space")

    def __init__(self, space: Space, number: int) -> None:
        self.space = space
        self.number = number

    def end(self) -> None:
        self.space.forget_operation(self.number)

    def wait(self) -> None:
        """An operation waits for managers, not for objects."""


@lru_cache(maxsize=4096)
def _direct(caller: Reference, callee: Reference) -> Addressing:
    return Addressing(caller=caller, objects=(callee,), is_direct=True)


class Space:
    """See the module's docstring. `loop`: the loop of the space. `member`, `incarnation`: of our machine; `number`: of
    this space on it."""

    shapes: ClassVar[dict[int, Callable[[Space, Pointer], object]]] = {}
    """By shape of a pointer: the function that makes its proxy. RemoteError when no proxy has such words."""

    def __init__(
        self,
        transport: Transport,
        loop: asyncio.AbstractEventLoop,
        *,
        member: int = 0,
        incarnation: int = 1,
        number: int = 0,
    ) -> None:
        self.loop = loop
        self.context = copy_context()
        self.context.run(ACTIVITY.set, None)
        self.origin = Origin(member, incarnation)
        self.program = Reference(member, incarnation, number * OBJECTS_IN_SPACE + 1)
        """The program as a caller."""
        self.late = 0
        """Number of replies that came when they were not wanted any more."""
        self._idle = Activity(self, self.program)
        self._transport = transport
        self._residents: dict[int, Resident] = {}
        self._next_object = self.program.number + 1
        self._next_call = 1
        self._under_way: dict[int, _UnderWay] = {}
        self._submissions: dict[int, _UnderWay] = {}
        self._operations: dict[int, Call[News]] = {}
        self.names = Names(self)
        transport.attach(self)

    # Objects.

    def create(self, own: K) -> K:
        """Let others call `own` from now on. Returns its proxy. LocalError when it is no Remote, lives in a space
        already, or all numbers of this space have been given: none is given twice in an incarnation."""
        given: object = own
        if not isinstance(given, Remote):
            what = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
            raise LocalError(f"{what} is no object that others can call: create one of a class derived from Remote")
        if own.home is not None:
            raise LocalError(f"this {type(own).__name__} has been created already")
        if self._next_object >= self.program.number - 1 + OBJECTS_IN_SPACE:
            raise LocalError(f"a space creates at most {OBJECTS_IN_SPACE - 2} objects in its incarnation")
        reference = Reference(*self.origin, self._next_object)
        proxy = self.proxy(reference, type(own))
        self._next_object += 1
        self._residents[reference.number] = Resident(own, reference, self)
        own.home = cast("Ref", proxy)
        self._tell(Operation.APPEAR, reference)
        return proxy

    def destroy(self, callee: Remote) -> None:
        """End an object of this space, named by its proxy or itself: its callers get DeadObject. LocalError when
        no such object lives here."""
        reference = self.reference_of(callee)
        resident = self._residents.pop(reference.number, None) if self.is_home_of(reference) else None
        if resident is None:
            raise LocalError(f"no object {reference.number} of this space is alive: it cannot be destroyed")
        resident.own.home = None
        self._tell(Operation.VANISH, reference)
        resident.vanish()

    def proxy(self, reference: Reference, kind: type[K]) -> K:
        """The proxy of the object `reference` of class `kind`, in this space or elsewhere."""
        kinds: type[Remote] = kind
        return cast("K", proxy_class(Ref, kinds)(self, reference))

    @staticmethod
    def reference_of(callee: object) -> Reference:
        """The reference of an object or of its proxy. LocalError for anything else."""
        found = callee.home if isinstance(callee, Remote) else callee
        if not isinstance(found, Ref):
            raise LocalError(f"a {type(callee).__name__} is no object of a space, and no proxy of one")
        return found.reference

    def bind(self, pointer: Pointer) -> object:
        """The proxy that came as `pointer`. RemoteError when no proxy has such a pointer."""
        make = self.shapes.get(pointer.shape)
        if make is None:
            raise RemoteError(DropReason.MALFORMED, f"a proxy of shape {pointer.shape}")
        return make(self, pointer)

    def joined(self, callee: Remote, group: GroupId) -> asyncio.Future[None]:
        """Done when an object of this space is a member of `group` and has its state. To be called before the request
        to join. LocalError when its class cannot take a state over."""
        resident = self._resident(self.reference_of(callee))
        require_state(type(resident.own))
        return resident.joined(group)

    def expelled(self, callee: Remote, group: GroupId) -> asyncio.Future[None]:
        """Done when an object of this space learns that `group` goes on without it."""
        return self._resident(self.reference_of(callee)).expelled(group)

    def forget_join(self, reference: Reference, group: GroupId) -> None:
        """The object is no member of `group` (any more): a new join waits again."""
        self._resident(reference).left(group)

    def is_home_of(self, reference: Reference) -> bool:
        """Whether `reference` names an object of this space, alive or not."""
        return reference[:2] == self.origin and reference.space == self.program.space

    # The program.

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a program here: its calls are those of the program of this space."""
        return self.loop.create_task(main, context=self.context.copy())

    @property
    def under_way(self) -> int:
        """Number of calls and operations that wait for an answer."""
        return len(self._under_way) + len(self._operations)

    @property
    def is_idle(self) -> bool:
        """Whether no call waits for its answer or for its turn."""
        return not self.under_way and not any(one.waiting or one.activity for one in self._residents.values())

    # Sending.

    def begin(self, request: Request, replies: Replies[Any], group: GroupId | None = None) -> None:
        """Call the members of `replies`, or `group`. NotAValue, Overrun; LocalError when a list is empty."""
        if len(self._under_way) >= MAX_UNDER_WAY:
            raise Overrun(f"{MAX_UNDER_WAY} calls of this space wait for their answers: wait for some of them first")
        if group is None and not replies.members:
            raise LocalError(f"{request.name} is called of nobody: a list names at least one object")
        activity = self._activity()
        addressing = self._addressing(activity, request.options, replies, group)
        call = _UnderWay(self, self._next_call, replies, activity)
        body = CallBody(
            call=CallId(activity.reference, call.number),
            name=request.name,
            arguments=request.arguments,
            keywords=request.keywords,
            chain=() if activity is self._idle else (*activity.chain, CallId(activity.reference, call.number)),
        )
        self._next_call += 1
        # Known before it is sent: a transport may deliver, and even answer, at once.
        self._under_way[call.number] = call
        replies.owner = call
        try:
            submission = self._transport.submit(addressing, body)
        except NotAValue:
            del self._under_way[call.number]
            raise
        if not replies.has_ended:
            call.submission = submission
            self._submissions[submission] = call
            if request.options.timeout is not None:
                call.deadline = self.loop.call_later(request.options.timeout, replies.expire)

    def operate(
        self,
        operation: Operation,
        *,
        objects: tuple[Reference, ...] = (),
        group: GroupId | None = None,
        name: str = "",
        timeout: float | None = None,
    ) -> Call[News]:
        """Ask for an operation on a group or on names; the call's result is the news DONE. Raises CallError otherwise:
        NoSuchGroup, Refused, Unreachable, Aborted, CallTimeout (`timeout` in seconds)."""
        addressing = Addressing(caller=self._activity().reference, objects=objects, group=group, operation=operation)
        number = self._transport.submit(addressing, NameBody(name=name))
        call: Call[News] = Call(_Operation(self, number), loop=self.loop)
        self._operations[number] = call
        if timeout is not None:
            error = CallTimeout(f"{operation.name} was not answered in time")
            handle = self.loop.call_later(timeout, self._end_operation, number, error)
            call.add_done_callback(lambda _: handle.cancel())
        return call

    def _activity(self) -> Activity:
        activity = ACTIVITY.get()
        return activity if activity is not None and activity.home is self else self._idle

    @staticmethod
    def _addressing(activity: Activity, options: Options, replies: Replies[Any], group: GroupId | None) -> Addressing:
        members = replies.members or ()
        if group is None and len(members) == 1:
            return _direct(activity.reference, members[0])
        return Addressing(
            caller=activity.reference,
            objects=() if group is not None else members,
            group=group,
            is_atomic=options.is_atomic,
            is_ordered=options.is_ordered,
        )

    # Calls by calls under way.

    def release(self, call: _UnderWay) -> None:
        """Forget a call: no more of its answers are wanted."""
        self._under_way.pop(call.number, None)
        self._submissions.pop(call.submission, None)
        if call.deadline is not None:
            call.deadline.cancel()

    def forget_operation(self, number: int) -> None:
        self._operations.pop(number, None)

    def break_cycles(self, activity: Activity) -> None:
        """A caller has begun to wait for a call that was made in `activity`."""
        if activity is not self._idle:
            resident = self._residents.get(activity.reference.number)
            if resident is not None and resident.waiting:
                resident.break_cycles()

    def _tell(self, operation: Operation, reference: Reference) -> None:
        addressing = Addressing(caller=self.program, objects=(reference,), operation=operation)
        self._transport.submit(addressing, NameBody())

    # Calls by residents (`HostingSpace`).

    def reply(self, resident: Resident, call: CallBody, reply: ReplyBody) -> None:
        """Send a reply. NotAValue: its value is no data."""
        self._answer(resident.reference, call.call.caller, reply)

    def hand_over(self, resident: Resident, joiner: Reference, state: StateBody) -> None:
        addressing = _direct(resident.reference, joiner)
        try:
            self._transport.submit(addressing, state)
        except NotAValue as error:
            problem = StateBody(group=state.group, timestamp=state.timestamp, state=None, problem=str(error))
            self._transport.submit(addressing, problem)

    def is_awaited_in(self, call: CallId, activity: Activity) -> bool:
        found = self._under_way.get(call.number)
        return found is not None and found.is_awaited and found.activity is activity

    # Calls by the transport (`Receiver`).

    def on_deliver(self, place: int, body: Body, origin: Origin) -> None:
        match body:
            case CallBody():
                self._on_call(place, body, origin)
            case ReplyBody():
                self._on_reply(place, body, origin)
            case StateBody():
                resident = self._residents.get(place)
                if resident is not None:
                    resident.take_state(body)
            case NameBody():
                raise RemoteError(DropReason.UNEXPECTED, "names are for managers, not for objects")

    def on_news(self, place: int, number: int, news: News) -> None:
        if number == 0:
            self._on_own_news(place, news)
        elif (call := self._submissions.get(number)) is not None:
            _tell_replies(call.replies, news)
        elif news.kind is NewsKind.DONE and number in self._operations:
            self._operations.pop(number).set_result(news)
        elif number in self._operations and (error := _error_of(news)) is not None:
            self._end_operation(number, error)

    def _on_call(self, place: int, body: CallBody, origin: Origin) -> None:
        _require_origin(body.call.caller, origin)
        resident = self._residents.get(place)
        if resident is not None:
            resident.take(body)
            return
        us = Reference(*self.origin, place)
        text = "the object is dead, or never was"
        reply = ReplyBody(number=body.call.number, member=us, outcome=Outcome.DEAD_OBJECT, text=text)
        self._answer(us, body.call.caller, reply)

    def _on_reply(self, place: int, body: ReplyBody, origin: Origin) -> None:
        _require_origin(body.member, origin)
        call = self._under_way.get(body.number)
        if call is None or call.activity.reference.number != place or not call.replies.wants(body.member):
            self.late += 1
            return
        error = body.error
        call.replies.take(Answer(body.member, body.value if error is None else None, error))

    def _on_own_news(self, place: int, news: News) -> None:
        resident = self._residents.get(place)
        if resident is None:
            return
        match news.kind:
            case NewsKind.UNREACHABLE:
                resident.lose_donor(news.objects)
            case NewsKind.STATE_WANTED if news.group is not None:
                resident.take(StateWanted(news.group, news.timestamp, news.objects[1]))
            case NewsKind.JOINED if news.group is not None:
                donor = news.objects[1] if len(news.objects) > 1 else None
                resident.take(StateComes(news.group, news.timestamp, donor))
            case NewsKind.EXPELLED if news.group is not None:
                resident.expel(news.group)

    def _answer(self, us: Reference, caller: Reference, reply: ReplyBody) -> None:
        self._transport.submit(_direct(us, caller), reply)

    def _end_operation(self, number: int, error: CallError) -> None:
        call = self._operations.pop(number, None)
        if call is not None and not call.done():
            call.set_exception(error)

    def _resident(self, reference: Reference) -> Resident:
        found = self._residents.get(reference.number) if self.is_home_of(reference) else None
        if found is None:
            raise LocalError(f"object {reference.number} does not live in this space")
        return found


def _require_origin(claimed: Reference, origin: Origin) -> None:
    """RemoteError unless the claimed object lives in the incarnation of the sender."""
    if claimed[:2] != origin:
        raise RemoteError(DropReason.MALFORMED, f"{origin} speaks for an object of {claimed[:2]}")


def _tell_replies(replies: Replies[Any], news: News) -> None:
    """Apply `news` to the replies of a call."""
    match news.kind:
        case NewsKind.RESOLVED if replies.members is None:
            replies.resolve(news.objects)
        case NewsKind.UNREACHABLE if news.objects or replies.members is not None:
            error = Unreachable("the object's machine has ended, or is cut off")
            replies.lose(news.objects or replies.members or (), error)
        case NewsKind.NO_GROUP:
            replies.fail(EmptyGroup("the group has no member, or does not exist"))
        case _:
            failure = _error_of(news)
            if failure is not None:
                replies.fail(failure)


def _error_of(news: News) -> CallError | None:
    """The error of a call or operation after these news; None: it does not fail."""
    match news.kind:
        case NewsKind.ABORTED:
            missing = ", ".join(f"object {one.number} of member {one.member}" for one in news.objects)
            return Aborted(f"not all members could take the call: none has ({missing or 'who could not is not known'})")
        case NewsKind.UNREACHABLE:
            return Unreachable("nobody who could answer was reached")
        case NewsKind.NO_GROUP:
            return NoSuchGroup("there is no such group")
        case NewsKind.REFUSED:
            return Refused("this machine is cut off from those who decide, or it is against the rules")
    return None


def _object_proxy(space: Space, pointer: Pointer) -> object:
    if len(pointer.words) != 1:
        raise RemoteError(DropReason.MALFORMED, f"a proxy of one object with {len(pointer.words)} words")
    return space.proxy(Reference.of_word(pointer.words[0]), kind_named(pointer.kind))


Space.shapes[SHAPE_OBJECT] = _object_proxy


SHAPE_GROUP = 2
"""Shape of pointers to replicated groups."""
SHAPE_UGROUP = 3
"""Shape of pointers to groups kept by one object, whose reference is the pointer's word."""
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.5


class UnknownName(CallError, LookupError):  # noqa: N818 (the outcome of a lookup, as node.objects.api.errors names them)
    """The name means nothing (any more)."""


class Names:
    """The names, as a service of one space."""

    def __init__(self, space: Space) -> None:
        self._space = space

    async def bind(self, name: str, callee: Remote, *, replace: bool = True) -> None:
        """Make `name` mean this object or group (its proxy) from now on; a UGroup is found again by `UGroup.named`.
        Without `replace`, Refused is raised when the name has a meaning in this sub-network already: of several
        attempts one succeeds. Raises Refused when we are cut off, or Unreachable; LocalError for an invalid name, or a
        callee that is neither."""
        group = _group_of(callee)
        objects = () if group is not None else (_member_list_of(callee) or self._space.reference_of(callee),)
        operation = Operation.BIND if replace else Operation.BIND_NEW
        await self._space.operate(operation, name=_checked(name), group=group, objects=objects)

    async def unbind(self, name: str) -> None:
        """Remove the meaning of `name`. Raises Refused when it has none, or Unreachable."""
        await self._space.operate(Operation.UNBIND, name=_checked(name))

    async def lookup(self, name: str, kind: type[K]) -> K:
        """A proxy of the object or group called `name`, as a `kind`. Raises UnknownName when there is none,
        Unreachable; LocalError for an invalid name, or a `kind` that is no class of objects."""
        found = await self.find(name, kind)
        if found is None:
            raise UnknownName(f"no object or group is called {name!r}")
        return found

    async def find(self, name: str, kind: type[K]) -> K | None:
        """As `lookup`; None when the name has no meaning."""
        require_kind(kind)
        return self._proxy(await self._space.operate(Operation.LOOKUP, name=_checked(name)), kind)

    async def wait_for(self, name: str, kind: type[K]) -> K:
        """As `lookup`, repeated until the name has a meaning; a time-out around it (asyncio.timeout) bounds the wait.
        While no manager can be asked (Unreachable, Refused), it waits, too."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                found = await self.find(name, kind)
            except CallError:
                found = None
            if found is not None:
                return found
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _proxy(self, news: News, kind: type[K]) -> K | None:
        if news.group is not None:
            found = self._space.bind(Pointer(SHAPE_GROUP, (news.group.word,), kind_name(kind)))
            assert isinstance(found, Pointed)
            return found  # type: ignore[return-value]  # a proxy is typed as what it stands for
        return self._space.proxy(news.objects[0], kind) if news.objects else None


def _checked(name: str) -> str:
    given: object = name
    if not isinstance(given, str):
        raise LocalError(f"a name is a text, not {given!r}")
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
        raise LocalError(f"a name has 1 to {MAX_NAME_BYTES} bytes in UTF-8, not {len(name.encode())}")
    return name


def _group_of(callee: object) -> GroupId | None:
    word = _word_of(callee, SHAPE_GROUP)
    return None if word is None else GroupId.of_word(word)


def _member_list_of(callee: object) -> Reference | None:
    word = _word_of(callee, SHAPE_UGROUP)
    return None if word is None else Reference.of_word(word)


def _word_of(callee: object, shape: int) -> int | None:
    """The word that the proxy of a group of this shape carries; None for anything else."""
    pointer = callee.pointer if isinstance(callee, Pointed) else None
    return pointer.words[0] if pointer is not None and pointer.shape == shape else None
