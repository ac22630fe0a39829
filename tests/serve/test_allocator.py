"""Memory that a server frees stays its own: no page faults for the next message of the same size."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PAGES_OF_A_MEGABYTE = 2**20 // 4096
SCRIPT = """
import resource, sys
from ridgeline.serve.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        bytearray(2**20), bytearray(2**20), bytearray(2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_kept() -> None:
    told = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout
    assert int(told) < PAGES_OF_A_MEGABYTE
