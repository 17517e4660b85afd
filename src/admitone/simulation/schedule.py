"""Who goes next: participants take turns, one call to a store at a time, in an order that a seed decides.

A participant stands for a process or a task. It runs until it is about to call a store, hands over the turn, makes the
call when the turn comes back, and runs on to the next. So nothing happens at the same time, and yet every order of
calls can. Faults strike at a numbered call:

    crash     the participant ends before the call; what it did so far stays
    lost      the call is made, and the caller gets an error
    unsent    the caller gets an error, the call is not made
    late      the caller gets an error, the call is made some calls later; only of the log
    repeated  the call is made and answered, and made once more some calls later; only of requests to end a transaction
    suspend   the participant sleeps while others go on, and makes the call when it wakes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

from greenlet import getcurrent, greenlet

from admitone.core.errors import AdmitoneError, ServiceUnreachable
from admitone.simulation.simulated_clock import SimulatedTime

T = TypeVar("T")
FAULTS: Final = ("crash", "lost", "unsent", "late", "repeated", "suspend")
_ENDING: Final = frozenset({"log.commit", "log.abort"})
_LONGEST_STEP_MS: Final = 20


class Killed(BaseException):
    """The participant's process ended: nothing it does from now on has any effect."""


@dataclass(eq=False, slots=True)
class Participant:
    """A process or a task, between two calls."""

    name: str
    greenlet: greenlet
    killed: bool = False
    waits_until: Callable[[], bool] = lambda: True
    sleeps_until: int = 0
    """The call before which it is suspended."""
    error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Tell whether it has ended, one way or the other."""
        return bool(self.greenlet.dead)


@dataclass(slots=True)
class Fault:
    """What goes wrong, at which call from now on, and for how many calls where it takes time."""

    kind: str
    at: int
    length: int
    of: str = ""
    """How the calls begin that are counted: any of them, or those to write."""


@dataclass(slots=True)
class Schedule:
    """Gives out turns."""

    random: Random
    time: SimulatedTime
    eagerness: float = 0.5
    """How likely the participant that made the last call makes the next one, too."""
    calls: int = 0
    """How many calls were made or came to nothing."""
    struck: Counter[str] = field(default_factory=Counter)
    """How many faults of each kind struck."""
    trace: list[str] = field(default_factory=list)
    participants: list[Participant] = field(default_factory=list)
    _faults: list[Fault] = field(default_factory=list)
    _on_their_way: list[tuple[int, Callable[[], object]]] = field(default_factory=list)
    _wakes: list[int] = field(default_factory=list)
    _was_repeated: bool = False
    _current: Participant | None = None
    _main: greenlet = field(default_factory=getcurrent)

    def start(self, name: str, work: Callable[[], object]) -> Participant:
        """Let a participant take part; it begins when its turn comes."""
        made = Participant(name, greenlet(parent=self._main))
        made.greenlet.run = lambda: self._ended(made, work)
        self.participants.append(made)
        return made

    def strike(self, fault: Fault) -> None:
        """Let a fault strike once its call comes."""
        self._faults.append(fault)

    def kill(self, participant: Participant) -> None:
        """End a participant where it stands."""
        participant.killed = True
        participant.waits_until, participant.sleeps_until = lambda: True, 0
        self.trace.append(f"       {participant.name} is killed")

    def later(self, calls: int, effect: Callable[[], object]) -> None:
        """Let something happen so many calls ahead."""
        self._on_their_way.append((self.calls + calls, effect))

    def call(self, name: str, effect: Callable[[], T]) -> T:
        """Make a call to a store when it is the caller's turn; outside of any participant, at once."""
        caller = self._current
        if caller is None:
            return effect()
        self._hand_over(caller)
        self.calls += 1
        fault = self._fault_at(name)
        kind = fault.kind if fault else ""
        self.trace.append(f"{self.calls:5}  {caller.name:14} {name} {kind}".rstrip())
        if fault is None:
            return effect()
        self.struck[kind] += 1
        return self._struck(caller, name, effect, kind, fault.length)

    def was_repeated(self) -> bool:
        """Tell whether the last call was made more than once, as a client knows by the time it took."""
        repeated, self._was_repeated = self._was_repeated, False
        return repeated

    def wait(self, condition: Callable[[], bool]) -> None:
        """Let the caller wait until something holds."""
        caller = self._current
        assert caller is not None
        caller.waits_until = condition
        self._hand_over(caller)

    def stopwatch(self) -> int:
        """Return how much time has passed, which no machine's clock changes."""
        return self.time.now

    def pause(self, seconds: float) -> None:
        """Let the caller wait until so much time has passed."""
        wakes_at = self.time.now + max(int(seconds * 1_000), 1)
        self._wakes.append(wakes_at)
        self.wait(lambda: self.time.now >= wakes_at)

    def run(self, calls: int) -> None:
        """Give out so many turns, or as many as the participants want."""
        last: Participant | None = None
        until = self.calls + calls
        while self.calls < until:
            self._deliver_what_is_due()
            ready = [
                each
                for each in self.participants
                if each.sleeps_until <= self.calls and each.waits_until()
            ]
            if not ready:
                if not (self._skip_to_next_wake() or self._wake_suspended()):
                    return
                continue
            if last not in ready or self.random.random() > self.eagerness:
                last = ready[int(self.random.random() * len(ready))]
            assert last is not None
            self.time.pass_by(int(self.random.random() * _LONGEST_STEP_MS))
            self._current = last
            last.greenlet.switch()
            self._current = None
            if last.is_over:
                self.participants.remove(last)

    def wake_all(self) -> None:
        """Let no more faults strike, requests arrive that are on their way, and suspended participants go on."""
        self._faults.clear()
        self._wake_suspended()
        for _, effect in self._on_their_way:
            _arrives(effect)
        self._on_their_way.clear()

    def end(self) -> None:
        """End every participant that is left."""
        for participant in self.participants:
            participant.killed = True
            # One that never had a turn does not catch it.
            with suppress(Killed):
                participant.greenlet.throw(Killed)
        self.participants.clear()

    def _hand_over(self, caller: Participant) -> None:
        if not caller.killed:
            self._main.switch()
        if caller.killed:
            raise Killed

    def _struck(
        self, caller: Participant, name: str, effect: Callable[[], T], fault: str, length: int
    ) -> T:
        if fault == "crash":
            caller.killed = True
            raise Killed
        if fault == "suspend":
            caller.sleeps_until = self.calls + length
            self._hand_over(caller)
            self.trace.append(f"       {caller.name} wakes")
            return effect()
        if fault == "repeated":
            self.later(length, effect)
            self._was_repeated = True
            return effect()
        if fault == "lost":
            effect()
        elif fault == "late":
            self.later(length, effect)
        raise ServiceUnreachable(f"{name} got no answer.", "try again")

    def _fault_at(self, name: str) -> Fault | None:
        """Return the fault whose call this is; it strikes once."""
        if not self._faults:
            return None
        for fault in self._faults:
            if name.startswith(fault.of):
                fault.at -= 1
        due = next((fault for fault in self._faults if fault.at <= 0), None)
        if due is not None:
            self._faults.remove(due)
            late = due.kind == "late" and not name.startswith("log.")
            if late or (due.kind == "repeated" and name not in _ENDING):
                due.kind = "lost"
        return due

    def _ended(self, participant: Participant, work: Callable[[], object]) -> None:
        try:
            work()
        except Killed:
            self.trace.append(f"       {participant.name} is gone")
        except Exception as error:
            participant.error = error
            self.trace.append(f"       {participant.name} ends: {type(error).__name__}: {error}")

    def _deliver_what_is_due(self) -> None:
        due = [each for each in self._on_their_way if each[0] <= self.calls]
        if due:
            self._on_their_way = [each for each in self._on_their_way if each[0] > self.calls]
            for _, effect in due:
                self.trace.append("       a late request arrives")
                _arrives(effect)

    def _wake_suspended(self) -> bool:
        """Wake the participants that are suspended; tell whether there are any."""
        suspended = [each for each in self.participants if each.sleeps_until > self.calls]
        for participant in suspended:
            participant.sleeps_until = 0
        return bool(suspended)

    def _skip_to_next_wake(self) -> bool:
        """Pass the time until the next one wakes; tell whether there is one."""
        self._wakes = [moment for moment in self._wakes if moment > self.time.now]
        if not self._wakes:
            return False
        self.time.now = min(self._wakes)
        return True


def _arrives(effect: Callable[[], object]) -> None:
    """Make a call that nobody waits for any more."""
    try:
        effect()
    except AdmitoneError:
        return
