"""A refusal as the end of a gRPC call."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from ridgeline.serve.errors import RequestError

# of UTF-8. gRPC may write a byte as three, and a client takes 8 KiB of metadata
LONGEST_DETAILS_BYTES = 2000


async def abort(context: Any, error: RequestError) -> NoReturn:
    details = error.message.encode()[:LONGEST_DETAILS_BYTES].decode(errors="ignore")
    await context.abort(grpc.StatusCode[error.kind.grpc_status], details)
    raise AssertionError("a call goes on after its end")
