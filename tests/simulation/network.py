"""Connections between members and the broker: they delay, cut, duplicate notices; order holds within one connection only.

A cut loses what is under way, from one side or both; the client hears of it soon, the broker later. A response's body
arrives in two steps, as on a real socket: its header asks for room, its bytes come behind, and the connection may be cut
in between. What the client does not read stands in the way of everything behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rocketcrew.remoting.command import Command
from rocketcrew.supervisor.core.slab import Slot

from .world import World

if TYPE_CHECKING:
    from .broker_host import BrokerHost
    from .member import SimMember

Sink = Callable[[int], Slot | None]
Answer = Callable[[Command | None, Slot | None], None]
"""Called once: with the response (its body was received into the slot if there was a sink), or with None = no answer."""


class Request:
    """One request on its way; `asker` says for which assignment it is, for the broker's side of the invariants."""

    __slots__ = ("answer", "asker", "command", "done", "sink", "slot")

    def __init__(self, command: Command, answer: Answer, sink: Sink | None, asker: object) -> None:
        self.command = command
        self.answer = answer
        self.sink = sink
        self.asker = asker
        self.slot: Slot | None = None
        self.done = False


class Link:
    """One connection of one member."""

    def __init__(self, world: World, member: SimMember, broker: BrokerHost, channel: int) -> None:
        self.world = world
        self.member = member
        self.broker = broker
        self.channel = channel
        self.address = f"10.0.0.{1 + channel % 250}:{20_000 + channel}"
        self.alive = True
        self.delivers = True
        """False = what still flies to the broker is lost too."""
        self.slow = 1.0
        self._pending: dict[int, Request] = {}
        self._opaque = 0
        self._up_ms = self._down_ms = 0.0
        self.unread: list[Command] = []
        """Responses after one that is not read (only a planted bug leaves one)."""
        self._unread_request: Request | None = None

    def _delay_ms(self) -> float:
        random = self.world.random.random
        return (0.05 + random() * 0.6 + (20 * random() if random() < 0.01 else 0)) * self.slow

    # --- to the broker ------------------------------------------------------------------------------------------

    def request(self, command: Command, answer: Answer, timeout_ms: float, sink: Sink | None, asker: object) -> None:
        """Send; `answer` is called exactly once."""
        self._opaque += 1
        command.opaque = self._opaque
        request = self._pending[self._opaque] = Request(command, answer, sink, asker)
        self.world.after(timeout_ms, self._time_out, self._opaque, request)
        self._up_ms = max(self._up_ms, self.world.now_ms + self._delay_ms())
        self.world.at(self._up_ms, self._arrive, request)

    def _arrive(self, request: Request) -> None:
        if self.delivers:
            self.broker.receive(self, request)

    def _time_out(self, opaque: int, request: Request) -> None:
        if request.done:
            self.world.steps -= 1  # nothing happened
            return
        self.world.note("a request timed out")
        self._pending.pop(opaque, None)
        self._finish(request, None)

    # --- to the member ------------------------------------------------------------------------------------------

    def respond(self, command: Command) -> None:
        """The broker writes a response or a request of its own."""
        if not self.alive:
            return
        self._down_ms = max(self._down_ms, self.world.now_ms + self._delay_ms())
        self.world.at(self._down_ms, self._receive, command)
        if not command.is_response and self.world.chance(0.2):
            self.world.note("a notice came twice")
            self.world.at(self._down_ms + self._delay_ms(), self._receive, command)

    def _receive(self, command: Command) -> None:
        if not self.alive:
            return
        if self.unread:
            self.unread.append(command)
            return
        if not command.is_response:
            self.member.event(self.member.edge.notified, command)
            return
        request = self._pending.get(command.opaque)
        if request is None:
            self.world.note("an answer came after its time-out")
            return
        if request.sink is None or not command.body:
            del self._pending[command.opaque]
            self._finish(request, command)
            return
        request.slot = request.sink(len(command.body))
        if request.slot is None and self.member.parts.leaves_unread:
            self.unread.append(command)
            self._unread_request = request
            return
        self._receive_body(request, command)

    def _receive_body(self, request: Request, command: Command) -> None:
        """The bytes come a little later, and everything behind them after that."""
        random = self.world.random.random
        delay = random() * 0.3 + (40 * random() if random() < 0.02 else 0)
        self._down_ms = max(self._down_ms, self.world.now_ms + delay)
        self.world.at(self._down_ms, self._body_complete, request, command)

    def _body_complete(self, request: Request, command: Command) -> None:
        if not self.alive or request.done:
            return
        del self._pending[command.opaque]
        if request.slot is not None:
            start = request.slot.start
            self.member.view[start : start + len(command.body)] = command.body
        self._finish(request, command)

    def read_again(self) -> None:
        """Only with a planted bug: look whether what was left unread finds room now."""
        while self.unread and self.alive and self._unread_request is not None:
            request = self._unread_request
            assert request.sink is not None
            slot = request.sink(len(self.unread[0].body))
            if slot is None:
                return
            first, *behind = self.unread
            self.unread, self._unread_request = [], None
            if request.done:
                self.member.core.state.release(slot)  # it timed out long ago
            else:
                request.slot = slot
                self._body_complete(request, first)
            for command in behind:
                self._receive(command)

    def _finish(self, request: Request, command: Command | None) -> None:
        request.done = True
        if command is None and request.slot is not None:
            # Half of the body was there: whatever stands in the slot now is nobody's.
            start = request.slot.start
            half = request.slot.length_bytes // 2
            self.member.view[start : start + half] = b"\xee" * half
            self.world.note("cut in the middle of a body")
        request.answer(command, request.slot)

    # --- the end ------------------------------------------------------------------------------------------------

    def cut(self, *, delivers: bool) -> None:
        """The connection is gone. `delivers` = what flies to the broker still arrives there, its answers do not."""
        if not self.alive:
            return
        self.alive = False
        self.delivers = delivers
        self.unread.clear()
        if self._pending:
            self.world.note("cut with requests under way")
        self.world.after(self.world.random.random() * 300, self.broker.closed, self)
        self.world.after(self.world.random.random() * 30, self._lost)

    def _lost(self) -> None:
        for request in list(self._pending.values()):
            if not request.done:
                self._finish(request, None)
        self._pending.clear()
        self.member.event(self.member.edge.disconnected, self)

    def abandon(self) -> None:
        """The client process is dead: nobody hears an answer any more."""
        if self.alive:
            self.alive = False
            self.delivers = self.world.chance(0.5)
            self.world.after(self.world.random.random() * 300, self.broker.closed, self)
        for request in self._pending.values():
            request.done = True
        self._pending.clear()
