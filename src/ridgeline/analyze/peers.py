"""The peers that an engine is benched against: ONNX Runtime with its defaults, and PyTorch op by op.

Both get the engine's thread count. Nothing is timed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from ridgeline.analyze.bench import Feeds, Peer
from ridgeline.errors import ModelError
from ridgeline.frontend.other_runtimes import open_session, session_options


def ort_peer(model: Path, *, threads: int, note: str = "") -> Peer:
    """A session with ONNX Runtime's own defaults for speed, and our thread count."""
    try:
        session = open_session(str(model), session_options(threads=threads))
    except Exception as error:  # the exceptions of ONNX Runtime have no common base class
        raise ModelError(
            f"ONNX Runtime cannot load {model}",
            got=str(error).splitlines()[0],
            help="leave ort out of --peers",
        ) from error
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Feeds) -> Mapping[str, np.ndarray]:
        try:
            return dict(zip(names, session.run(None, feeds), strict=True))
        except Exception as error:
            raise ModelError(
                f"{model} does not take the engine's inputs",
                got=str(error).splitlines()[0],
                help="is it the model that the engine was made from?",
            ) from error

    return Peer(f"ort {onnxruntime.__version__}", run, note)
