"""JSON from outside as typed values: dataclasses are read field by field, and what does not fit is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Read = Callable[[Any], Any]
# sizes, counts and offsets all end up in 64-bit integers
INT64 = range(-(2**63), 2**63)


class Misfit(ValueError):
    """A value of another type than its place wants."""

    def __init__(self, got: object, want: str, at: str = "") -> None:
        self.got, self.want, self.at = got, want, at
        super().__init__(f"{at.lstrip('.') or 'the value'} is {repr(got)[:80]}, want {want}")

    def inside(self, place: str) -> Misfit:
        return Misfit(self.got, self.want, place + self.at)


def parse_json(data: str | bytes | memoryview) -> Any:
    """Strict: UTF-8, and no escape of half a character, which no later writer could encode."""
    text = data if isinstance(data, str) else bytes(data).decode("utf-8")
    raw = json.loads(text)
    if "\\u" in text:
        json.dumps(raw, ensure_ascii=False).encode("utf-8")
    return raw


def read_as(kind: type[T], raw: Any) -> T:
    """`raw` as a value of this type, or `Misfit` with the path to what is wrong."""
    read: Callable[[Any], T] = _reader(kind)  # type: ignore[arg-type]  # classes are hashable
    return read(raw)


@cache
def _reader(kind: Any) -> Read:
    origin, args = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _list_reader(args[0])
    if origin is tuple:
        return _row_reader(args)
    if origin in (dict, Mapping):
        return _dict_reader(args[1])
    if origin is Literal:
        return lambda raw: raw if raw in args else _no(raw, " or ".join(map(repr, args)))
    if origin in (Union, UnionType) and NoneType in args:
        rest = tuple(arg for arg in args if arg is not NoneType)
        inner = _reader(rest[0]) if len(rest) == 1 else _scalar_reader(rest)
        return lambda raw: None if raw is None else inner(raw)
    if any(get_origin(arg) is tuple for arg in args):
        return lambda raw: raw  # a tree, which whoever knows its grammar reads
    return _scalar_reader(args if origin in (Union, UnionType) else (kind,))


def _no(raw: Any, want: str) -> Any:
    raise Misfit(raw, want)


def _read_at(read: Read, raw: Any, mark: str, place: object) -> Any:
    """A part of a value; what does not fit is said with its place."""
    try:
        return read(raw)
    except Misfit as error:
        raise error.inside(mark.format(place)) from None


def _scalar_reader(kinds: tuple[type, ...]) -> Read:
    want = " or ".join(kind.__name__ for kind in kinds)

    def read(raw: Any) -> Any:
        if type(raw) is int:
            if raw not in INT64:
                raise Misfit(raw, "a 64-bit integer")
            return raw if int in kinds else float(raw) if float in kinds else _no(raw, want)
        return raw if type(raw) in kinds else _no(raw, want)

    return read


def _list_reader(kind: Any) -> Read:
    read_item = _reader(kind)

    def read(raw: Any) -> tuple[Any, ...]:
        if not isinstance(raw, (list, tuple)):
            raise Misfit(raw, "a list")
        return tuple([_read_at(read_item, item, "[{}]", i) for i, item in enumerate(raw)])

    return read


def _row_reader(kinds: tuple[Any, ...]) -> Read:
    readers = [_reader(kind) for kind in kinds]

    def read(raw: Any) -> tuple[Any, ...]:
        if not isinstance(raw, (list, tuple)) or len(raw) != len(readers):
            raise Misfit(raw, f"a list of {len(readers)}")
        return tuple(read_item(item) for read_item, item in zip(readers, raw, strict=True))

    return read


def _dict_reader(kind: Any) -> Read:
    read_item = _reader(kind)

    def read(raw: Any) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise Misfit(raw, "an object")
        return {name: _read_at(read_item, item, ".{}", name) for name, item in raw.items()}

    return read


def _dataclass_reader(kind: Any) -> Read:
    known = {f.name for f in fields(kind)}
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    readers: dict[str, Read] = {}

    def read(raw: Any) -> Any:
        if not readers:  # not earlier: a plan holds plans
            hints = get_type_hints(kind)
            readers.update((name, _reader(hints[name])) for name in known)
        if not isinstance(raw, dict):
            raise Misfit(raw, f"an object ({kind.__name__})")
        if not known >= raw.keys() >= needed:
            wrong = sorted(map(str, (raw.keys() - known) | (needed - raw.keys())))
            raise Misfit(wrong, f"the fields of {kind.__name__}, all of them and no others")
        return kind(**{name: _read_at(readers[name], item, ".{}", name) for name, item in raw.items()})

    return read
