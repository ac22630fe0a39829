"""Changes that know nothing of what a file means: bytes, JSON values, fields of protobuf messages."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from google.protobuf.message import Message

# sizes and signs at the edges of types, other types, text that is no text
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 63, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63 - 1, 2**63, -(2**63),
    2**200, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "x", "y", "aten", "cpp.gemv", "float32", "int4",
    "../../etc/passwd", "\ud800", "\0", "é" * 50, "a" * 5000, [], {}, [[]], [0], [1, 2, 3], {"x": 1}, [None],
)  # fmt: skip
TOKENS = (
    b"", b"\0", b"\xff" * 8, b"\x80\x80\x80\x80\x80\x01", b'"\\ud800"', b"1e999", b"-1", b"{", b"[" * 2000,
    b"NaN", b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"9" * 400, b"null", b"\xed\xa0\x80",
)  # fmt: skip

SIZES = (0, 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1)


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to eight changes: flipped bits, other bytes, cuts, doubled parts, tokens that parsers know."""
    made = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        at = rng.randrange(len(made) + 1)
        span = min(len(made) - at, 1 << rng.randrange(8))
        match rng.randrange(7):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                made[at : at + span] = rng.randbytes(span)
            case 2:
                del made[at : at + span]
            case 3:
                made[at:at] = made[at : at + span]
            case 4:
                made[at : at + rng.randrange(9)] = rng.choice(TOKENS)
            case 5 if at + 8 <= len(made):
                made[at : at + 8] = rng.choice(SIZES).to_bytes(8, "little")
            case 6 if rng.random() < 0.3:
                del made[at:]
    return bytes(made)


def change_json(data: bytes, rng: random.Random) -> bytes:
    """Some values replaced, removed, doubled, or swapped with others of the same document."""
    root = json.loads(data)
    for _ in range(1 << rng.randrange(3)):
        places = list(_places(root))
        if not places:
            break
        holder, key = rng.choice(places)
        match rng.randrange(5):
            case 0 | 1:
                holder[key] = copy.deepcopy(rng.choice(VALUES))  # lists among them are changed further
            case 2 if isinstance(holder, dict):
                holder[str(rng.choice(VALUES))[:40]] = holder.pop(key)
            case 3 if isinstance(holder, list):
                holder.insert(rng.randrange(len(holder) + 1), holder[key])
            case 4:
                other, other_key = rng.choice(places)
                holder[key] = json.loads(json.dumps(other[other_key]))
            case _:
                del holder[key]
    return json.dumps(root).encode()


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


def change_message(message: Message, rng: random.Random) -> None:
    """Some fields set to other values, cleared, or repeated; where, is drawn from the whole message."""
    for _ in range(1 << rng.randrange(3)):
        inner = rng.choice(list(_messages(message)))
        field = rng.choice(inner.DESCRIPTOR.fields)
        try:
            _change_field(inner, field, rng)
        except (ValueError, TypeError, IndexError):  # a value that the field cannot hold
            inner.ClearField(field.name)


def _messages(message: Message) -> Any:
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for item in value if field.is_repeated else [value]:
                yield from _messages(item)


def _change_field(inner: Message, field: Any, rng: random.Random) -> None:
    value = rng.choice(VALUES)
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        value = value if isinstance(value, str) else str(value)
        value = value.encode(errors="replace") if field.type == field.TYPE_BYTES else value
    if field.is_repeated:
        items = getattr(inner, field.name)
        if items and rng.random() < 0.5:
            del items[rng.randrange(len(items))]
        elif items and field.type == field.TYPE_MESSAGE:
            items.append(items[rng.randrange(len(items))])
        elif field.type == field.TYPE_MESSAGE:
            items.add()
        else:
            items.append(value)
    elif field.type == field.TYPE_MESSAGE:
        getattr(inner, field.name).SetInParent()
    else:
        setattr(inner, field.name, value)
