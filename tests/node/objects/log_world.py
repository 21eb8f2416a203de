"""Sub-networks of machines, each with its own state of its sub-network's log, in a random world with all faults.

The log of a sub-network is a list; its next entry is drawn from the submitted ones, each machine's calls in their
order. Every machine applies it at its own pace. Messages between sub-networks are encoded, lost, duplicated and
reordered; any machine may take itself for the MMM, with a log state that lags. Machines end and join, and an entry that
no second machine had to store is lost with the only machine that has it; a sub-network restarts when all its machines
have ended. Objects of a group keep the list of calls to it as their state, and transfer it.
"""

from __future__ import annotations

import graphlib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import Random

from node.core import Membership
from node.objects.addresses import OBJECTS_IN_SPACE, Addressing, GroupId, Operation, Reference
from node.objects.log.entries import (
    Answer,
    Call,
    Called,
    CallId,
    ClockAdvance,
    Crossing,
    Dispatch,
    Drop,
    Entry,
    Key,
    Missed,
    Outcome,
    Prepare,
    Proposals,
    Proposed,
    SendCrossing,
    Settled,
    Step,
    Verdict,
    Voted,
    entry_of,
    message_of,
)
from node.objects.log.state import LogState
from node.objects.manager.context import is_for_list
from node.wire import decode_message, encode_message

Partitions = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class News:
    """Entry of a log: a machine has ended, or joined."""

    member: int
    incarnation: int
    has_joined: bool
    view: int


@dataclass
class Log:
    """Log of one sub-network in one epoch. `submitted`: entries submitted by each machine."""

    epoch: int
    incarnations: dict[int, int]
    events: list[Entry | News] = field(default_factory=list)
    submitted: dict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    digests: dict[int, bytes] = field(default_factory=dict)
    view: int = 1

    def news(self, member: int, incarnation: int, *, has_joined: bool) -> None:
        self.view += 1
        self.events.append(News(member, incarnation, has_joined, self.view))


@dataclass
class Machine:
    """One incarnation of a machine."""

    member: int
    incarnation: int
    place: int
    log_state: LogState
    log: Log
    applied: int = 0
    heard: int = 0
    number: int = 0
    seen: dict[CallId, None] = field(default_factory=dict)
    """Calls delivered here: a call from here follows them, and the earlier ones of its own space."""
    asked: dict[int, dict[CallId, None]] = field(default_factory=lambda: defaultdict(dict))
    waits: dict[CallId, Call] = field(default_factory=dict)

    @property
    def membership(self) -> Membership:
        return Membership(member=self.member, members=(self.member,), incarnation=self.incarnation)

    @property
    def objects(self) -> tuple[Reference, ...]:
        return tuple(Reference(self.member, self.incarnation, space * OBJECTS_IN_SPACE + 1) for space in range(2))


class World:
    """A world. `act` takes one step drawn from `rng`; `settle` lets everything end."""

    def __init__(self, partitions: Partitions, rng: Random, *, groups: float = 0.3, faults: bool = True) -> None:
        self.partitions = partitions
        self.place_of = {member: place for place, members in enumerate(partitions) for member in members}
        self.rng = rng
        self.loss = rng.choice((0.0, 0.2, 0.5))
        self.is_settling = False
        self.of_groups = groups
        self.busy = rng.choices(sorted(self.place_of), k=2)
        """Members that make more calls than others, so that clocks of sub-networks differ."""
        self.faults = faults
        self.logs = [Log(1, dict.fromkeys(members, 1)) for members in partitions]
        self.machines: dict[int, Machine] = {}
        self.incarnations = dict.fromkeys(self.place_of, 1)
        self.bag: list[tuple[int, bytes]] = []
        self.calls: dict[CallId, Call] = {}
        self.follows: dict[CallId, tuple[CallId, ...]] = {}
        self.home: dict[CallId, tuple[int, int]] = {}
        self.sequences: dict[Reference, list[Key]] = defaultdict(list)
        self.missed: set[tuple[CallId, Reference]] = set()
        self.ordered: dict[CallId, Answer] = {}
        self.verdicts: Counter[CallId] = Counter()
        self.answered_in: dict[CallId, tuple[int, Log]] = {}
        self.groups: list[GroupId] = []
        self.states: dict[tuple[GroupId, Reference], list[CallId] | None] = {}
        self.handed_over: dict[CallId, list[CallId] | None] = {}
        for member, place in self.place_of.items():
            log_state = LogState(place=place, partitions=partitions)
            self.machines[member] = Machine(member, 1, place, log_state, self.logs[place])

    # Steps.

    def act(self) -> None:
        actions: list[Callable[[], None]] = [self.append] * 8 + [self.arrive] * 8
        may_end = self.faults and self.rng.random() < 0.1
        if self.machines:
            machine = self.rng.choice([*self.machines.values()])
            own = [self.ask] * 8 + [self.step] * 10 + [self.serve] * 4
            if self.faults:
                own += [self.give_up] * 2 + [self.copy] + [self.end] * may_end
            actions += [partial(act, machine) for act in own]
        actions += [self.begin] * 2 * may_end
        self.rng.choice(actions)()

    def ask(self, machine: Machine) -> None:
        if self.rng.random() < 0.5:
            machine = self.machines.get(self.rng.choice(self.busy), machine)
        caller = self.rng.choice(machine.objects)
        addressing = self._addressing(caller)
        home = addressing.group.partition if addressing.group else machine.place
        if not self._may_start(machine, addressing, home):
            return
        machine.number += 1
        name = CallId(machine.member, machine.incarnation, machine.number)
        call = Call(id=name, addressing=addressing, heard=machine.heard, payload=b"stampedX" + b"body")
        self.calls[name] = call
        self.follows[name] = (*machine.seen, *machine.asked[caller.space])
        if addressing.operation in (Operation.CALL, Operation.JOIN):
            machine.asked[caller.space][name] = None
        machine.waits[name] = call
        self._submit_call(machine, call, home)

    def append(self) -> None:
        log = self.rng.choice(self.logs)
        waiting = sorted(member for member, entries in log.submitted.items() if entries)
        if not waiting:
            return
        entries = log.submitted[self.rng.choice(waiting)]
        at = self.rng.randrange(len(entries))
        if isinstance(entries[at], Called):
            at = next(place for place, entry in enumerate(entries) if isinstance(entry, Called))
        entry = entries.pop(at)
        if isinstance(entry, Proposed) and self.rng.random() < 0.5:
            found = [one for one in entries if isinstance(one, Proposed) and one.id == entry.id]
            parts = {one.link.place: one for one in (*found, entry)}
            if len(parts) > 1:
                entry = Proposals(parts=tuple(one for _, one in sorted(parts.items())))
        self._log(log, entry)

    def _log(self, log: Log, entry: Entry) -> None:
        if isinstance(entry, Called):
            self.home.setdefault(entry.call.id, (self.logs.index(log), log.epoch))
        log.events.append(entry)

    def step(self, machine: Machine) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.apply(machine)

    def arrive(self) -> None:
        if not self.bag:
            return
        at = self.rng.randrange(len(self.bag))
        target, data = self.bag[at]
        if self.rng.random() > 0.1:
            del self.bag[at]
        machine = self.machines.get(target)
        if machine is None or self.rng.random() < self.loss:
            return
        entry = entry_of(decode_message(data))
        if isinstance(entry, Called):
            self._submit(machine, entry)
            return
        assert isinstance(entry, Crossing)
        reply = machine.log_state.reply(entry)
        if reply is not None:
            self._send(machine, entry.link.place, reply)
        for each in machine.log_state.news(entry, under_way=self.rng.randrange(3)):
            self._submit(machine, each)

    def serve(self, machine: Machine) -> None:
        """A machine takes itself for the MMM, or repeats a request without an answer."""
        for duty in machine.log_state.duties():
            if self.rng.random() < 0.5:
                self._send(machine, duty.place, duty.entry)
        self._ask_again(machine)

    def give_up(self, machine: Machine) -> None:
        duties = machine.log_state.duties()
        if duties and self.rng.random() < 0.3:
            self._submit(machine, self.rng.choice(duties).given_up(machine.place))

    def copy(self, machine: Machine) -> None:
        """A machine goes on with a copy of its log state."""
        before = machine.log_state.snapshot()
        machine.log_state = LogState.restore(before, place=machine.place, partitions=self.partitions)
        assert machine.log_state.snapshot() == before

    def end(self, machine: Machine) -> None:
        if sum(one.place == machine.place for one in self.machines.values()) == 1 > self.rng.random() * 3:
            return
        del self.machines[machine.member]
        machine.log.submitted.pop(machine.member, None)
        self._lose_end(machine.log)
        machine.log.news(machine.member, machine.incarnation, has_joined=False)

    def _lose_end(self, log: Log) -> None:
        """Lose entries that only the machine had that has just ended, if no second machine had to store them."""
        kept = max((one.applied for one in self.machines.values() if one.log is log), default=len(log.events))
        while len(log.events) > kept and self.rng.random() < 0.9:
            last = log.events[-1]
            is_abroad = isinstance(last, Called) and self._is_abroad(last.call)
            is_loose = isinstance(last, Settled | ClockAdvance) or (isinstance(last, Outcome) and last.timestamp)
            if not (is_loose or is_abroad):
                break
            log.events.pop()
            log.digests.pop(len(log.events), None)
            if isinstance(last, Called) and last.call.id.member in self.machines:
                log.submitted[last.call.id.member].insert(0, last)  # its group layer hands it back

    def _is_abroad(self, call: Call) -> bool:
        """Whether other sub-networks propose a timestamp for this call to a list, so that it is not final at once."""
        places = {self.place_of.get(one.member) for one in call.covered}
        return is_for_list(call) and bool(places - {self.place_of[call.id.member], None})

    def begin(self) -> None:
        gone = sorted(set(self.place_of) - set(self.machines))
        if not gone:
            return
        member = self.rng.choice(gone)
        self.incarnations[member] += 1
        place, incarnation = self.place_of[member], self.incarnations[member]
        mates = [one for one in self.machines.values() if one.place == place]
        if not mates:
            epoch = self.logs[place].epoch + 1
            log = self.logs[place] = Log(epoch, {member: incarnation})
            log_state = LogState(place=place, partitions=self.partitions, epoch=epoch, incarnations=log.incarnations)
            self.machines[member] = Machine(member, incarnation, place, log_state, log)
            return
        log = self.logs[place]
        log.news(member, incarnation, has_joined=True)
        mate = self.rng.choice(mates)
        while mate.applied < len(log.events):
            self.apply(mate)
        log_state = LogState.restore(mate.log_state.snapshot(), place=place, partitions=self.partitions)
        self.machines[member] = Machine(member, incarnation, place, log_state, log, applied=len(log.events))

    # Steps of a log state, carried out by its machine.

    def apply(self, machine: Machine) -> None:
        log = machine.log
        if machine.applied == len(log.events):
            return
        event, log_state = log.events[machine.applied], machine.log_state
        if isinstance(event, News):
            log_state.begin_view(event.view)
            steps = (log_state.joined if event.has_joined else log_state.ended)(event.member, event.incarnation)
        else:
            steps = log_state.apply(event)
        is_first = machine.applied not in log.digests
        machine.applied += 1
        digest = hashlib.sha256(machine.log_state.snapshot() + repr(steps).encode()).digest()
        assert log.digests.setdefault(machine.applied - 1, digest) == digest, "two states of one log differ"
        for step in steps:
            self._do(machine, step, is_first=is_first)

    def _do(self, machine: Machine, step: Step, *, is_first: bool) -> None:
        match step:
            case Dispatch():
                for one in step.objects:
                    if one[:2] == (machine.member, machine.incarnation):
                        self._hand(machine, step, one)
            case Prepare() if self.rng.random() < 0.7:
                self._submit(machine, Voted(id=step.call.id, is_yes=self.rng.random() < 0.9))
            case SendCrossing():
                if self.rng.random() < 0.5:
                    self._send(machine, step.place, step.entry)
            case Missed():
                self.missed.update((step.id, one) for one in step.objects)
            case Drop() if step.call.addressing.group and not step.call.is_atomic:
                for one in step.objects:
                    self.states.pop((step.call.addressing.group, one), None)
            case Answer():
                self._answer(machine, step, is_first=is_first)
            case _:
                pass

    def _hand(self, machine: Machine, step: Dispatch, one: Reference) -> None:
        call, group = step.call, step.call.addressing.group
        self.sequences[one].append(Key(step.timestamp, call.id))
        machine.heard = max(machine.heard, step.timestamp)
        machine.seen[call.id] = None
        if group is None:
            return
        if call.addressing.operation is Operation.JOIN:
            donor, joiner = (call.members[0] if len(call.members) > 1 else None), call.members[-1]
            if one == donor:
                found = self.states.get((group, one))
                self.handed_over[call.id] = None if found is None else [*found]
            if one == joiner:
                self.states[group, one] = [] if donor is None else [call.id]
        else:
            state = self.states.get((group, one))
            if state is not None:
                state.append(call.id)

    def _answer(self, machine: Machine, step: Answer, *, is_first: bool) -> None:
        if step.verdict is Verdict.ORDERED:
            self.ordered[step.id] = step
        self.missed.update((step.id, one) for one in step.missing)
        if is_first and step.id not in self.verdicts:
            self.verdicts[step.id] = step.verdict
            self.answered_in[step.id] = machine.place, machine.log
        place, log = self.answered_in[step.id]
        if log is self.logs[place]:  # a log that restarted has forgotten its answers
            assert self.verdicts[step.id] == step.verdict, "two answers to one call"
        owner = self.machines.get(step.id.member)
        if owner is None or owner.incarnation != step.id.incarnation:
            return
        # News of the machine's own log state are local; others are a datagram.
        is_own = owner is machine if owner.place == machine.place else self.rng.random() > self.loss
        if is_own and owner.waits.pop(step.id, None) is not None:
            # Not only calls delivered here: the next call may have another coordinator.
            owner.heard = max(owner.heard, step.timestamp)
            if step.verdict is Verdict.DONE and self.calls[step.id].addressing.operation is Operation.CREATE:
                group = self.calls[step.id].addressing.group
                assert group is not None
                self.groups.append(group)

    # End.

    def settle(self) -> None:
        """Run without faults and losses, with all machines up: all calls must end."""
        self.is_settling, self.loss = True, 0.0
        while set(self.place_of) - set(self.machines):
            self.begin()
        for _ in range(300):
            self._log_all()
            while self.bag:
                self.arrive()
            if self.is_at_rest:
                return
            for place in range(len(self.partitions)):
                master = next(one for one in self.machines.values() if one.place == place)
                for duty in master.log_state.duties():
                    self._send(master, duty.place, duty.entry)
                for prepare in master.log_state.open_votes():
                    self._submit(master, Voted(id=prepare.call.id, is_yes=False))  # its machines are too late
            for machine in self.machines.values():
                self._ask_again(machine)
        held = {
            one.member: (one.log_state.buffered, one.log_state.duties(), sorted(one.waits))
            for one in self.machines.values()
        }
        raise AssertionError(f"not at rest: {held}")

    def _log_all(self) -> None:
        for log in self.logs:
            for _, entries in sorted(log.submitted.items()):
                for entry in entries:
                    self._log(log, entry)
                entries.clear()
        for machine in self.machines.values():
            while machine.applied < len(machine.log.events):
                self.apply(machine)

    def _ask_again(self, machine: Machine) -> None:
        for call in machine.waits.values():
            group = call.addressing.group
            if group is not None and group.partition != machine.place:
                self._submit_call(machine, call, group.partition)

    @property
    def is_at_rest(self) -> bool:
        return not self.bag and all(
            one.log_state.is_idle and not one.waits and not any(one.log.submitted.values())
            for one in self.machines.values()
        )

    # Helpers.

    def _submit(self, machine: Machine, entry: Entry) -> None:
        message = decode_message(encode_message(message_of(entry, machine.membership)))
        assert entry_of(message) == entry
        machine.log.submitted[machine.member].append(entry)

    def _submit_call(self, machine: Machine, call: Call, home: int) -> None:
        if home == machine.place:
            self._submit(machine, Called(call=call))
        else:
            self._send(machine, home, Called(call=call))

    def _send(self, machine: Machine, place: int, entry: Crossing | Called) -> None:
        target = self.rng.choice(self.partitions[place])
        if self.is_settling:
            target = next((one.member for one in self.machines.values() if one.place == place), target)
        self.bag.append((target, encode_message(message_of(entry, machine.membership))))

    def _addressing(self, caller: Reference) -> Addressing:
        if self.rng.random() < self.of_groups:
            if not self.groups or (len(self.groups) < 3 and self.rng.random() < 0.02):
                group = GroupId(self.place_of[caller.member], caller.member, caller.incarnation, len(self.calls) + 1)
                return Addressing(caller=caller, group=group, operation=Operation.CREATE)
            return self._of_group(caller)
        # Few objects, so that calls conflict.
        living = sorted(machine.objects[self.rng.random() < 0.1] for machine in self.machines.values())
        objects = self.rng.sample(living, self.rng.randint(1, min(4, len(living))))
        if self.rng.random() < 0.05:
            objects.append(Reference(caller.member, 900, 1))
        return Addressing(caller=caller, objects=tuple(objects), is_atomic=self.rng.random() < 0.2)

    def _of_group(self, caller: Reference) -> Addressing:
        group = self.rng.choice(self.groups)
        draw = self.rng.random()
        home = next((one for one in self.machines.values() if one.place == group.partition), None)
        if draw < 0.05 or (draw < 0.4 and home and caller not in (home.log_state.members(group) or ())):
            return Addressing(caller=caller, group=group, operation=Operation.JOIN, objects=(caller,))
        if 0.4 <= draw < 0.43:
            return Addressing(caller=caller, group=group, operation=Operation.LEAVE, objects=(caller,))
        if 0.43 <= draw < 0.46:
            operation = self.rng.choice((Operation.MEMBERS, Operation.ATOMIC, Operation.NONATOMIC))
            return Addressing(caller=caller, group=group, operation=operation)
        return Addressing(caller=caller, group=group, is_atomic=self.rng.random() < 0.1)

    def _may_start(self, machine: Machine, addressing: Addressing, home: int) -> bool:
        """The SMM's rule: calls of one machine overlap only within one coordinator, and while they cover more."""
        ours = {self.place_of[one.member] for one in addressing.objects if one.member in self.place_of}
        for earlier in machine.waits.values():
            group = earlier.addressing.group
            if group is not None or addressing.group is not None:
                if group != addressing.group or home != machine.place:
                    return False
            elif not {self.place_of[one.member] for one in earlier.addressing.objects} <= ours:
                return False
        return True

    # Checks.

    def judge(self) -> None:
        self._judge_order()
        self._judge_causality()
        self._judge_agreement()
        self._judge_groups()

    def _judge_order(self) -> None:
        graph: dict[CallId, set[CallId]] = defaultdict(set)
        timestamps: dict[CallId, int] = {}
        for one, keys in self.sequences.items():
            assert len({key.id for key in keys}) == len(keys), f"{one} got a call twice"
            for earlier, later in pairwise(keys):
                graph[later.id].add(earlier.id)
            for key in keys:
                assert timestamps.setdefault(key.id, key.timestamp) == key.timestamp, "two timestamps of one call"
        tuple(graphlib.TopologicalSorter(graph).static_order())

    def _judge_causality(self) -> None:
        keys = {key.id: key for keys in self.sequences.values() for key in keys}
        for name, key in keys.items():
            for earlier in self.follows[name]:
                assert earlier not in keys or keys[earlier] < key, f"{name} overtook {earlier}"

    def _judge_agreement(self) -> None:
        got = {(key.id, one) for one, keys in self.sequences.items() for key in keys}
        living = {one for machine in self.machines.values() for one in machine.objects}
        for name, answer in self.ordered.items():
            place, epoch = self.home[name]
            if self.logs[place].epoch != epoch:
                continue  # the coordinator's whole sub-network has died
            call = self.calls[name]
            covered = [one for one in (*answer.objects, *answer.missing) if one in living]
            having = [one for one in covered if (name, one) in got]
            for one in covered:
                assert (name, one) in self.missed or one in having, f"{one} never got {name}"
            if call.addressing.is_atomic or call.addressing.operation is Operation.JOIN:
                assert len(having) == len(covered), f"{name} is atomic, and some of {covered} did not get it"
        for name, one in got:
            place, epoch = self.home[name]
            is_remembered = self.logs[place].epoch == epoch
            assert name in self.ordered or not is_remembered, f"{one} got {name}, which was not ordered"

    def _judge_groups(self) -> None:
        """All members have the same state: the calls to the group, earlier ones by state transfer."""
        for group in self.groups:
            home = next(one for one in self.machines.values() if one.place == group.partition)
            states = [self.state(group, one) for one in home.log_state.members(group) or ()]
            known = [state for state in states if state is not None]
            assert all(state == known[0] for state in known), f"replicas of {group} differ: {known}"

    def state(self, group: GroupId, one: Reference) -> list[CallId] | None:
        """State of an object; None: its donor ended before the transfer."""
        found = self.states.get((group, one))
        if found and self.calls[found[0]].addressing.operation is Operation.JOIN:
            before = self.handed_over.get(found[0])
            found = None if before is None else self._resolved(before) + found[1:]
        return found

    def _resolved(self, state: list[CallId]) -> list[CallId]:
        if state and self.calls[state[0]].addressing.operation is Operation.JOIN:
            return self._resolved(self.handed_over.get(state[0]) or []) + state[1:]
        return state
