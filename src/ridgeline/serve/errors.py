"""What a request can be refused with: one kind, one status over HTTP and one over gRPC."""

from __future__ import annotations

from enum import Enum

from ridgeline.errors import visible

LONGEST_MESSAGE = 2000


class Kind(Enum):
    """Name on the wire between processes, status over HTTP, name of the status over gRPC."""

    INVALID = ("invalid", 400, "INVALID_ARGUMENT")
    UNAUTHENTICATED = ("unauthenticated", 401, "UNAUTHENTICATED")
    FORBIDDEN = ("forbidden", 403, "PERMISSION_DENIED")
    NOT_FOUND = ("not_found", 404, "NOT_FOUND")
    SLOW = ("slow", 408, "DEADLINE_EXCEEDED")  # the body did not arrive in time
    TOO_LARGE = ("too_large", 413, "RESOURCE_EXHAUSTED")
    CANCELLED = ("cancelled", 400, "CANCELLED")
    INTERNAL = ("internal", 500, "INTERNAL")
    UNSUPPORTED = ("unsupported", 501, "UNIMPLEMENTED")
    UNAVAILABLE = ("unavailable", 503, "UNAVAILABLE")  # queue full, timed out in it, stopping, worker died

    def __init__(self, word: str, http_status: int, grpc_status: str) -> None:
        self.word, self.http_status, self.grpc_status = word, http_status, grpc_status


KINDS = {kind.word: kind for kind in Kind}


class RequestError(Exception):
    """A request that gets an error for an answer. The message is for the client: no paths, no keys."""

    def __init__(self, kind: Kind, message: str, *, reason: str = "OTHER") -> None:
        self.kind, self.message = kind, visible(message)[:LONGEST_MESSAGE]
        self.reason = reason  # of nv_inference_request_failure: REJECTED, CANCELED, BACKEND or OTHER
        super().__init__(self.message)


def invalid(message: str) -> RequestError:
    return RequestError(Kind.INVALID, message)


def not_found(message: str) -> RequestError:
    return RequestError(Kind.NOT_FOUND, message)


def unavailable(message: str, *, reason: str = "REJECTED") -> RequestError:
    return RequestError(Kind.UNAVAILABLE, message, reason=reason)


def unsupported(message: str) -> RequestError:
    return RequestError(Kind.UNSUPPORTED, message)
