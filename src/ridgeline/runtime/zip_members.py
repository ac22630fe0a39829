"""The zip around an engine. Members lie in it as they are, side by side, and are read where they lie.

Only the directory is read by `zipfile`. Sizes come from it and must fit into the file, so that nothing that
is read can be larger than the file itself.
"""

from __future__ import annotations

import mmap
import stat
import struct
import zipfile
from pathlib import Path

from ridgeline.base.files import open_regular

LOCAL_HEADER = struct.Struct("<4s5H3L2H")  # signature, five fields of no concern, sizes, two lengths
UTF8_NAME = 0x800


def read_members(path: Path) -> dict[str, memoryview]:
    """Every member by name, over memory that maps the file; `ValueError` for a zip that is not plain."""
    with open_regular(path) as file:
        # copy-on-write: tensors over it may be written without touching the file
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        with zipfile.ZipFile(file) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
            end_of_data = archive.start_dir
    members: dict[str, memoryview] = {}
    end = 0
    for info in infos:
        if info.filename in members:
            raise ValueError(f"{info.filename} is in it twice")
        if info.header_offset < end:
            raise ValueError(f"{info.filename} lies inside another member")
        start, end = _place(info, whole)
        if end > end_of_data:
            raise ValueError(f"{info.filename} is larger than the file")
        members[info.filename] = whole[start:end]
    return members


def _place(info: zipfile.ZipInfo, whole: memoryview) -> tuple[int, int]:
    """Where a member's bytes lie."""
    name = info.orig_filename
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise ValueError(f"{name} is compressed, want members stored as they are")
    if info.flag_bits & ~UTF8_NAME:
        raise ValueError(f"{name} is encrypted or streamed")
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        raise ValueError(f"{name} is a link or a folder")
    signature, *_, name_length, extra_length = LOCAL_HEADER.unpack_from(whole, info.header_offset)
    begin = info.header_offset + LOCAL_HEADER.size
    if signature != b"PK\x03\x04" or bytes(whole[begin : begin + name_length]) != name.encode():
        raise ValueError(f"{name} is not where the directory says")
    start = begin + name_length + extra_length
    return start, start + info.file_size
