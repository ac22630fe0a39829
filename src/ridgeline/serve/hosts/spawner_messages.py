"""What a server and its spawner tell one another: one message a packet."""

from __future__ import annotations

import signal

import msgspec

PACKET_BYTES = 1 << 12


class Packet(msgspec.Struct, tag=True):
    """Of fixed fields."""


class Fork(Packet):
    """The worker's end of its socket comes with the packet."""

    number: int
    device: str
    limit_bytes: int


class Kill(Packet):
    number: int


class Ready(Packet):
    """Everything is imported. Native threads of the process, by name: there should be one."""

    threads: list[str]


class Forked(Packet):
    number: int
    pid: int


class Exited(Packet):
    """`status` as `os.waitstatus_to_exitcode` gives it: negative for a signal. `error`: it never began."""

    number: int
    status: int
    error: str = ""

    @property
    def text(self) -> str:
        if self.error:
            return f"could not be forked: {self.error}"
        if self.status >= 0:
            return f"exited with status {self.status}"
        return f"was ended by signal {-self.status} ({signal.strsignal(-self.status) or 'unknown'})"
