"""The receiving half without sockets: any split, any place, junk after it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.client.receiver import BUFFER_BYTES, DROP, OWN, Receiver
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.remoting.frame import HEADER_MAX, encode


class Owner:
    """Collects commands; bodies of code 1 go into a view, of code 2 are dropped, others are owned."""

    def __init__(self):
        self.commands = []
        self.views = []

    def place(self, command, body_bytes):
        if command.code == 1:
            self.views.append(memoryview(bytearray(body_bytes)))
            return self.views[-1]
        return DROP if command.code == 2 else OWN

    def deliver(self, command):
        self.commands.append(command)


def feed(receiver, data, step):
    position = 0
    while position < len(data):
        target = receiver.buffer()
        assert len(target) > 0
        count = min(len(target), step, len(data) - position)
        target[:count] = data[position : position + count]
        receiver.received(count)
        position += count


def body_of(length):
    return bytes(i * 7 % 251 for i in range(length))


def frames():
    commands = [
        Command(1, {"a": "b"}, body_of(5000), opaque=7, flag=1),
        Command(2, {}, body_of(3000), opaque=8, flag=1),
        Command(3, {"c": "ü" * 400}, body_of(2000), opaque=9, flag=1),
        Command(4, {}, b"", opaque=10, flag=1),
        Command(1, {}, b"x", opaque=11, flag=1),
        Command(2, {}, b"y", opaque=12, flag=1),
    ]
    return commands, b"".join(encode(command) for command in commands)


@pytest.mark.parametrize("buffer_bytes", [8, 64, 700, 4096, 65536])
@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
def test_any_split_gives_the_same_commands(buffer_bytes, step):
    commands, data = frames()
    owner = Owner()
    receiver = Receiver(owner, buffer_bytes=buffer_bytes)
    feed(receiver, data, step)
    assert [c.opaque for c in owner.commands] == [7, 8, 9, 10, 11, 12]
    assert [bytes(c.body) for c in owner.commands] == [c.body if c.code != 2 else b"" for c in commands]
    assert [c.dropped for c in owner.commands] == [c.code == 2 for c in commands]
    assert owner.commands[0].body is owner.views[0]
    assert type(owner.commands[2].body) is bytes
    assert owner.commands[2].fields == commands[2].fields
    assert not receiver.mid_frame


@given(st.data())
def test_random_frames_in_random_pieces(data):
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 900), st.integers(0, 300)), max_size=8))
    commands = [
        Command(code, {"p": "q" * fields}, body_of(size), opaque=i, flag=1)
        for i, (code, size, fields) in enumerate(shapes)
    ]
    owner = Owner()
    receiver = Receiver(owner, buffer_bytes=data.draw(st.sampled_from([8, 100, 1024])))
    feed(receiver, b"".join(encode(c) for c in commands), data.draw(st.integers(1, 500)))
    assert [c.opaque for c in owner.commands] == list(range(len(commands)))
    for sent, got in zip(commands, owner.commands, strict=True):
        assert bytes(got.body) == (b"" if sent.code == 2 else sent.body)


@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x14\x07\x00\x00\x02{}",
        b"\x00\x00\x00\x06\x00\x00\x00\x09{}",
        b"\x00\x00\x00\x06\x00\x00\x00\x02{]",
    ],
)
def test_junk_behind_good_frames_is_an_error_after_them(junk, step):
    _, data = frames()
    owner = Owner()
    receiver = Receiver(owner)
    with pytest.raises(ProtocolError):
        feed(receiver, data + junk + bytes(64), step)
    assert [c.opaque for c in owner.commands] == [7, 8, 9, 10, 11, 12]


def test_a_giant_header_is_refused_before_it_is_read():
    receiver = Receiver(Owner())
    head = (HEADER_MAX + 100).to_bytes(4, "big") + (HEADER_MAX + 1).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="limit"):
        feed(receiver, head, 8)
    assert len(receiver.buffer()) <= BUFFER_BYTES


def test_a_large_header_grows_the_buffer_and_gives_it_back():
    owner = Owner()
    receiver = Receiver(owner, buffer_bytes=128)
    feed(receiver, encode(Command(4, {"p": "v" * 50_000}, flag=1)), 1000)
    assert owner.commands[0].fields == {"p": "v" * 50_000}
    assert len(receiver.buffer()) == 128


def test_a_body_given_up_on_the_way_is_drained_and_its_view_left_alone():
    owner = Owner()
    receiver = Receiver(owner, buffer_bytes=64)
    data = encode(Command(1, {}, b"\xaa" * 1000, opaque=5, flag=1)) + encode(Command(4, opaque=6, flag=1))
    feed(receiver, data[:500], 500)
    receiver.drop_body(4)  # not the one under way
    assert receiver.mid_frame
    view = owner.views[0]
    receiver.drop_body(5)
    view[:] = bytes(1000)
    feed(receiver, data[500:], 100)
    assert bytes(view) == bytes(1000)
    assert [(c.opaque, c.dropped) for c in owner.commands] == [(5, True), (6, False)]
