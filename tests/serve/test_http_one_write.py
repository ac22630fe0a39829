"""An answer over HTTP is one write; what comes without a body, or before it, is not kept back."""

from __future__ import annotations

import pytest

from ridgeline.serve.http.answer import OneWrite


class Recorder:
    """A transport that keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.calls.append(b"".join(parts))

    def close(self) -> None:
        self.calls.append(b"closed")


@pytest.mark.parametrize(
    ("written", "calls"),
    [
        ([b"head", b"body"], [b"headbody"]),
        ([b"head", b""], [b"head"]),
        (
            [b"HTTP/1.1 100 Continue\r\n\r\n", b"head", b"body"],
            [b"HTTP/1.1 100 Continue\r\n\r\n", b"headbody"],
        ),
        ([b"head", None], [b"head"]),
        ([b"head"], [b"head"]),
        ([b"head", b"1", b"2", b"3", None], [b"head1", b"2", b"3"]),
    ],
)
def test_pairs_of_writes_are_one(written: list[bytes | None], calls: list[bytes]) -> None:
    recorder = Recorder()
    one = OneWrite(recorder)  # type: ignore[arg-type]
    for data in written:
        if data is None:
            one.flush()
        else:
            one.write(data)
    one.close()
    assert recorder.calls == [*calls, b"closed"]
