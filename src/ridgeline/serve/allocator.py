"""How glibc keeps memory that was freed: a server frees and takes the same sizes all the time."""

from __future__ import annotations

import ctypes
import sys

from ridgeline.serve.settings import MIB

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt
KEPT_BYTES = 256 * MIB  # at the end of the heap
MAPPED_BYTES = 32 * MIB  # larger ones are mapped one by one, and unmapped; glibc allows no more


def keep_freed_memory() -> bool:
    """For the whole process. Without it the pages of every message are taken anew from the system, which
    doubles what a call with a tensor of 600 KB costs over gRPC (bench/grpc_servers.py). False: not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
