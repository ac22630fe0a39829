"""Both ends of a channel over a real socket: tensors through shared memory, in turn and without waiting."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from channel_ends import Ends, Note, Parcel

from ridgeline.serve.link.arena import KEPT_BYTES, SEGMENT_BYTES, Block
from ridgeline.serve.link.channel import Channel, Release, socket_pair
from ridgeline.serve.link.frames import LONGEST, RECEIVED_BYTES, ChannelError
from ridgeline.serve.link.loop_channel import RELEASE_SECONDS, LoopChannel

MIB = 1 << 20


def allocated(channel: LoopChannel, nbytes: int) -> Block:
    blocks: list[Block] = []
    channel.allocate(nbytes, blocks.append)
    (block,) = blocks
    return block


def echo(channel: Channel) -> None:
    """Send back what is in each parcel, through memory of this side; give the peer's memory back."""
    with suppress(ChannelError):
        for parcel in channel.receive():
            data = channel.peer_view(parcel.block)
            assert data.readonly
            block = channel.allocate(len(data))
            channel.view(block)[:] = data
            channel.release(parcel.block)
            channel.send(Parcel(block, parcel.text[::-1]))


@pytest.fixture
def thread() -> Iterator[Callable[..., None]]:
    started: list[threading.Thread] = []

    def start(target: Callable[..., None], *arguments: Any) -> None:
        started.append(threading.Thread(target=target, args=arguments, daemon=True))
        started[-1].start()

    yield start
    for each in started:
        each.join(10)
        assert not each.is_alive()


@pytest.mark.parametrize("nbytes", [0, 1, 63, 4 * MIB, SEGMENT_BYTES + 1])
def test_bytes_come_back_as_they_went(nbytes: int, thread: Callable[..., None]) -> None:
    async def body() -> None:
        with Ends() as ends:
            thread(echo, ends.there())
            data = os.urandom(nbytes)
            block = allocated(ends.here, nbytes)
            ends.here.view(block)[:] = data
            ends.here.send(Parcel(block, "there"))
            await ends.until(lambda: ends.got)
            assert ends.got[0].text == "ereht"
            assert bytes(ends.here.peer_view(ends.got[0].block)) == data

    asyncio.run(body())


def test_blocks_are_given_back_in_any_order_and_segments_after_them() -> None:
    async def body() -> None:
        with Ends() as ends:
            there = ends.there()
            blocks = [there.allocate(SEGMENT_BYTES) for _ in range(8)]
            assert there._written.arena.nbytes == 8 * SEGMENT_BYTES
            for i, block in enumerate(blocks):
                there.view(block)[:1] = bytes([i])
                there.send(Parcel(block))
            await ends.until(lambda: len(ends.got) == 8)
            views = [ends.here.peer_view(parcel.block) for parcel in ends.got]
            for i in (3, 0, 7, 1, 6, 2, 5, 4):
                assert views[i][0] == i
                ends.here.release(ends.got[i].block)
            for _ in blocks:
                there._read_more()
                if there._written.arena.nbytes == KEPT_BYTES:
                    break
            assert there._written.arena.nbytes == KEPT_BYTES
            await ends.until(lambda: len(ends.here._read._memory) == KEPT_BYTES // SEGMENT_BYTES)
            assert views[7][0] == 7  # a view outlives its segment

    asyncio.run(body())


def test_small_blocks_are_given_back_with_the_next_message_or_soon() -> None:
    async def body() -> None:
        with Ends() as ends:
            there = ends.there()
            for _ in range(2):
                there.send(Parcel(there.allocate(100)))
            await ends.until(lambda: len(ends.got) == 2)
            theirs = ends.theirs.dup()
            theirs.setblocking(False)
            with theirs:
                ends.here.release(ends.got[0].block)
                with pytest.raises(BlockingIOError):
                    theirs.recv(1, socket.MSG_PEEK)  # a message of its own would cost a wake-up
                ends.here.send(Note("next"))
                assert theirs.recv(1, socket.MSG_PEEK)
            assert next(there.receive()) == Note("next")
            ends.here.release(ends.got[1].block)
            await asyncio.sleep(2 * RELEASE_SECONDS)
            there._read_more()
            assert there._written.arena.allocate(100) == Block(0, 0, 100)  # the first of all is free

    asyncio.run(body())


def test_a_full_area_waits_in_turn() -> None:
    async def body() -> None:
        with Ends(limit_bytes=2 * MIB) as ends:
            there = ends.there()
            first, second = (allocated(ends.here, MIB) for _ in range(2))
            came: list[tuple[str, Block]] = []
            ends.here.allocate(2 * MIB, lambda block: came.append(("large", block)))
            ends.here.allocate(100, lambda block: came.append(("small", block)))
            ends.here.free(first)
            assert not came  # the small one does not overtake
            ends.here.allocate(100, lambda block: came.append(("late", block)))
            assert not came
            there.send(Release([second]))
            await ends.until(lambda: came)
            assert came == [("large", Block(0, 0, 2 * MIB))]
            ends.here.free(came[0][1])
            assert came[1:] == [("small", Block(0, 0, 100)), ("late", Block(0, 128, 100))]
            with pytest.raises(ValueError, match="limit"):
                ends.here.allocate(2 * MIB + 1, lambda _: None)

    asyncio.run(body())


def test_a_thread_waits_for_memory_and_keeps_messages_for_later(thread: Callable[..., None]) -> None:
    async def body() -> None:
        with Ends() as ends:
            there, got = ends.there(limit_bytes=MIB), list[Block]()
            block = there.allocate(MIB)
            there.send(Parcel(block))
            await ends.until(lambda: ends.got)
            thread(lambda: got.append(there.allocate(MIB)))
            ends.here.send(Note("first"))
            await asyncio.sleep(0.02)
            assert not got
            ends.here.release(block)
            await ends.until(lambda: got)
            assert next(there.receive()) == Note("first")

    asyncio.run(body())


def test_a_thread_that_waits_for_memory_hears_that_the_peer_is_gone() -> None:
    async def body() -> None:
        with Ends() as ends:
            there = ends.there(limit_bytes=MIB)
            there.allocate(MIB)
            ends.here.close()
            with pytest.raises(ChannelError, match="gone"):
                await asyncio.to_thread(there.allocate, 1)

    asyncio.run(body())


def test_a_peer_that_does_not_read_blocks_nobody_and_gets_everything_in_the_end() -> None:
    async def body() -> None:
        with Ends() as ends:
            there, text = ends.there(), "x" * 20_000
            for i in range(100):  # far more than a socket holds
                ends.here.send(Note(f"{i} {text}"))
                if i == 50:
                    block = allocated(ends.here, 100)  # with a descriptor, in the middle
                    ends.here.view(block)[:] = b"y" * 100
                    ends.here.send(Parcel(block))
            messages = there.receive()
            for i in range(100):
                note = await asyncio.to_thread(next, messages)
                assert note.text.startswith(f"{i} ")
                if i == 50:
                    parcel = await asyncio.to_thread(next, messages)
                    assert bytes(there.peer_view(parcel.block)) == b"y" * 100

    asyncio.run(body())


def test_messages_longer_than_the_buffer_arrive_whole(thread: Callable[..., None]) -> None:
    async def body() -> None:
        with Ends() as ends:
            there, texts = ends.there(), ["a" * (3 * RECEIVED_BYTES), "b", "c" * RECEIVED_BYTES]
            thread(lambda: [there.send(Note(text)) for text in texts])
            await ends.until(lambda: len(ends.got) == 3)
            assert [note.text for note in ends.got] == texts
            with pytest.raises(ValueError, match="longer"):
                ends.here.send(Note("d" * LONGEST))
            ends.here.send(Note("e"))
            assert next(there.receive()) == Note("e")

    asyncio.run(body())


def test_a_handler_that_fails_keeps_no_message_from_the_next() -> None:
    async def body() -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        got: list[str] = []

        def take(note: Note) -> None:
            got.append(note.text)
            if note.text == "bad":
                raise KeyError("of another module")

        ours, theirs = socket_pair()
        here = LoopChannel(ours, (Note,), on_message=take, on_closed=got.append)
        with closing(here), closing(theirs):
            there = Channel(theirs, ())
            for text in ("bad", "good"):
                there.send(Note(text))
            async with asyncio.timeout(10):
                while len(got) < 2:
                    await asyncio.sleep(0.001)
        assert got == ["bad", "good"]
        assert isinstance(failures[0]["exception"], KeyError)

    asyncio.run(body())


def test_what_a_peer_sent_before_it_ended_still_counts() -> None:
    async def body() -> None:
        with Ends() as ends:
            ends.there().send(Note("last"))
            ends.theirs.close()
            ends.here.read_rest()
            assert ends.got == [Note("last")]
            assert not ends.closed
            ends.here.send(Note("nobody"))
            ends.here.release(Block(0, 0, 1))

    asyncio.run(body())
