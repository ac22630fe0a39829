"""Where a server is, as users write it: `localhost:8000`, with or without a scheme."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from ridgeline.errors import OptionError

LOOPBACK = "127.0.0.1"
HTTP_PORT, GRPC_PORT = 8000, 8001
# scheme: encrypted or not
SCHEMES = {"http": False, "grpc": False, "https": True, "grpcs": True}
EXAMPLE = "localhost:8000"


@dataclass(frozen=True)
class Address:
    """A host and a port, and whether the connection is encrypted."""

    host: str = LOOPBACK
    port: int = HTTP_PORT
    tls: bool = False

    def __str__(self) -> str:
        """As the Host header has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, port: int = HTTP_PORT) -> Address:
    """``localhost:8000``, ``:8000``, ``8000`` or any of them behind a scheme; `port` if there is none."""
    scheme, mark, rest = text.strip().rpartition("://")
    if mark and scheme.lower() not in SCHEMES:
        raise _unreadable(text, f"the scheme {scheme!r}")
    if rest.isdecimal():
        rest = f":{rest}"
    try:
        parts = urlsplit(f"//{rest}")
        found = parts.port
    except ValueError as error:
        raise _unreadable(text, str(error)) from None
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise _unreadable(text, "more than a host and a port")
    if not rest or any(c.isspace() for c in rest):
        raise _unreadable(text, "no host")
    return Address(
        parts.hostname or LOOPBACK, port if found is None else found, SCHEMES[scheme.lower() or "http"]
    )


def _unreadable(text: str, got: str) -> OptionError:
    return OptionError(f"{text!r} is no address of a server", got=got, want=f"a host and a port: {EXAMPLE}")
