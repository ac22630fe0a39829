"""How cuBLAS and cuDNN multiply float32, when PyTorch calls them for us.

PyTorch has process-wide settings for this, and cuDNN's default is TF32. An engine computes what its graph
says whatever a process has set, so each call states what it wants and puts the settings back afterwards.
One thread at a time does so, or threads would compute with each other's settings and put those back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

TF32, IEEE = "tf32", "ieee"
_settings = threading.RLock()


@contextmanager
def library_math(*, rounds: bool = False, benchmark: bool = False) -> Iterator[None]:
    """Within it, operands of float32 products and convolutions are rounded to TF32, or are not.

    Recurrent layers never round. With `benchmark`, cuDNN times its plans for new sizes.
    """
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    before: list[tuple[Any, str, Any]] = []

    def change(owner: Any, name: str, value: Any) -> None:
        before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    with _settings:
        try:
            for owner, wanted in ((matmul, rounds), (cudnn.conv, rounds), (cudnn.rnn, False)):
                # the older `allow_tf32` cannot be read once a process has used this one, which both set
                if (owner.fp32_precision == TF32) != wanted:
                    change(owner, "fp32_precision", TF32 if wanted else IEEE)
            for name, flag in (("enabled", True), ("benchmark", benchmark)):
                if getattr(cudnn, name) != flag:
                    change(cudnn, name, flag)
            yield
        finally:
            for owner, name, value in reversed(before):
                setattr(owner, name, value)
