"""Sessions of ONNX Runtime whose threads sleep while they wait, for workers that share a machine.

By default each of its threads spins for 40 ms when a session is opened and after each run. That takes more of
the other worker's core than a small build takes of its own. Results do not depend on it. For OpenMP, the
Makefile's OMP_WAIT_POLICY does the same.
"""

from __future__ import annotations

from typing import Any

import onnxruntime as ort

SPINNING = "session.intra_op.allow_spinning"
_open: Any = ort.InferenceSession.__init__


class PassiveOptions(ort.SessionOptions):
    """Options that refuse to spin, whatever is asked of them."""

    def __init__(self) -> None:
        super().__init__()
        super().add_session_config_entry(SPINNING, "0")

    def add_session_config_entry(self, key: str, value: str) -> None:
        if key != SPINNING:
            super().add_session_config_entry(key, value)


def _open_passive(
    self: ort.InferenceSession, content: Any, sess_options: Any = None, *args: Any, **kwargs: Any
) -> None:
    _open(self, content, PassiveOptions() if sess_options is None else sess_options, *args, **kwargs)


def make_sessions_passive() -> None:
    """For the rest of this process."""
    ort.SessionOptions = PassiveOptions
    ort.InferenceSession.__init__ = _open_passive
