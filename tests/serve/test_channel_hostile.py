"""Whatever a peer may send that crashed or was taken over: it is left, and nothing of ours is touched."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import random
import socket
import struct

import msgspec
import pytest
from channel_ends import Ends, Note, Parcel

from ridgeline.serve.link.areas import SEALS, Attach, Detach
from ridgeline.serve.link.arena import Block
from ridgeline.serve.link.channel import Release
from ridgeline.serve.link.frames import DESCRIPTORS, LONGEST, ChannelError


def packed(*messages: msgspec.Struct) -> bytes:
    bodies = [msgspec.msgpack.encode(message) for message in messages]
    return b"".join(struct.pack("<I", len(body)) + body for body in bodies)


def memfd(nbytes: int, *, seals: bool = True) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


HUGE = 2**63
BAD_BYTES = {
    "garbage": (random.Random(14).randbytes(4096), ""),
    "zeros": (bytes(64), "cannot be read"),
    "a length beyond the limit": (struct.pack("<I", LONGEST + 1), f"{LONGEST + 1:,} bytes"),
    "another struct": (packed(Release([])).replace(b"~", b"?"), "cannot be read"),
    "wrong types": (struct.pack("<I", 9) + msgspec.msgpack.encode(["Note", 17]).ljust(9, b"\0"), "cannot be"),
    "not UTF-8": (struct.pack("<I", 8) + b"\x92\xa4Note\xa1\xff", "cannot be read"),
    "an array of billions": (struct.pack("<I", 5) + b"\xdd\xff\xff\xff\xff", "cannot be read"),
    "memory that nobody took": (packed(Release([Block(0, 0, 100)])), "no segment 0"),
    "a segment without its descriptor": (packed(Attach(0, 4096)), "descriptor is missing"),
    "a segment that is not there": (packed(Detach(3)), "no segment 3"),
}


@pytest.mark.parametrize("case", BAD_BYTES)
def test_a_peer_that_sends_nonsense_is_left(case: str) -> None:
    data, why = BAD_BYTES[case]

    async def body() -> None:
        with Ends() as ends:
            ends.theirs.sendall(data)
            await ends.until(lambda: ends.closed)
            assert why in ends.closed[0]
            assert not ends.here.is_open
            assert not ends.got

    asyncio.run(body())


BAD_SEGMENTS = {
    "larger than its file": (lambda: memfd(4096), Attach(0, 8192), "has 4096 bytes, not 8192"),
    "of no bytes": (lambda: memfd(4096), Attach(0, 0), "not 0"),
    "of negative size": (lambda: memfd(4096), Attach(0, -1), "not -1"),
    "that may shrink": (lambda: memfd(4096, seals=False), Attach(0, 4096), "may still change"),
    "that is no memory": (lambda: os.open("/dev/null", os.O_RDONLY), Attach(0, 4096), "cannot be mapped"),
}


@pytest.mark.parametrize("case", BAD_SEGMENTS)
def test_a_segment_is_checked_before_it_is_mapped(case: str) -> None:
    make, message, why = BAD_SEGMENTS[case]

    async def body() -> None:
        with Ends() as ends:
            descriptor = make()
            socket.send_fds(ends.theirs, [packed(message)], [descriptor])
            os.close(descriptor)
            await ends.until(lambda: ends.closed)
            assert why in ends.closed[0]

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(body())
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_that_nobody_asked_for_are_closed() -> None:
    async def body() -> None:
        with Ends() as ends:
            descriptor = memfd(4096)
            for _ in range(DESCRIPTORS + 1):
                socket.send_fds(ends.theirs, [packed(Note("here"))], [descriptor])
            os.close(descriptor)
            await ends.until(lambda: ends.closed)
            assert ends.closed == ["too many descriptors at once"]

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(body())
    assert len(os.listdir("/proc/self/fd")) == before


PLACES = [
    Block(1, 0, 1), Block(0, 4000, 97), Block(0, 4097, 0), Block(0, HUGE, 1), Block(0, 0, HUGE),
    Block(0, -1, 1), Block(0, 64, -64), Block(-1, 0, 1),
]  # fmt: skip


@pytest.mark.parametrize("block", PLACES, ids=str)
def test_a_place_outside_its_segment_is_no_view(block: Block) -> None:
    async def body() -> None:
        with Ends() as ends:
            descriptor = memfd(4096)
            socket.send_fds(ends.theirs, [packed(Attach(0, 4096), Parcel(block))], [descriptor])
            os.close(descriptor)
            await ends.until(lambda: ends.got)
            with pytest.raises(ChannelError, match="segment"):
                ends.here.peer_view(ends.got[0].block)
            assert len(ends.here.peer_view(Block(0, 4000, 96))) == 96

    asyncio.run(body())


def test_a_number_of_a_segment_is_not_used_twice_at_a_time() -> None:
    async def body() -> None:
        with Ends() as ends:
            descriptor = memfd(4096)
            for _ in range(2):
                socket.send_fds(ends.theirs, [packed(Attach(0, 4096))], [descriptor])
            os.close(descriptor)
            await ends.until(lambda: ends.closed)
            assert "there already" in ends.closed[0]

    asyncio.run(body())


def test_the_reader_cannot_write() -> None:
    async def body() -> None:
        with Ends() as ends:
            there = ends.there()
            there.send(Parcel(there.allocate(100)))
            await ends.until(lambda: ends.got)
            view = ends.here.peer_view(ends.got[0].block)
            with pytest.raises(TypeError, match="read-only"):
                view[0] = 1

    asyncio.run(body())
