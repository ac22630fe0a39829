"""Importing this makes `torch.compile` know the ridgeline backend by name where the installation does not."""

from __future__ import annotations

import torch._dynamo

from ridgeline.torch_in.backend import ridgeline_backend

if "ridgeline" not in torch._dynamo.list_backends(exclude_tags=()):
    torch._dynamo.register_backend(compiler_fn=ridgeline_backend, name="ridgeline")
