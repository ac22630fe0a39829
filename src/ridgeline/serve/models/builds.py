"""Engines for the ONNX models of a repository: built once, in a process of their own, and kept.

An engine is kept under the hash of everything that decides it: the files of the model, the options, the
version of this package. One build runs at a time: builds time kernels, and two would disturb each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ridgeline.base.files import private_folder
from ridgeline.base.version import VERSION
from ridgeline.serve.hosts.hosting import LoadError

CACHE = Path("~/.cache/ridgeline/serve")
HASHED_AT_ONCE = 1 << 20
MODELS = (".onnx", ".ridge")
_log = logging.getLogger(__name__)

Tell = Callable[[str], None]


class Builds:
    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._turn = asyncio.Lock()

    async def engine_for(
        self, model: Path, options: Mapping[str, Any], largest_batch: int, tell: Tell
    ) -> Path:
        """The engine file, from the cache or built now. `tell` hears how far it is."""
        loop = asyncio.get_running_loop()
        key = await loop.run_in_executor(
            None, _key, files_of(model), {**options, "largest_batch": largest_batch}
        )
        path = self._folder() / f"{key}.ridge"
        async with self._turn:
            if not path.is_file():
                _log.info("building %s", model.name)
                await _build(model, path, options, largest_batch, tell)
        return path

    def _folder(self) -> Path:
        if self._cache is not None:
            self._cache.mkdir(parents=True, exist_ok=True)
            return self._cache
        return private_folder(CACHE.expanduser())


def files_of(model: Path) -> list[Path]:
    """The model, and what may hold its weights: not other models beside it, nor what is named after them."""
    beside = sorted(each for each in model.parent.iterdir() if each.is_file())
    stems = [each.stem for each in beside if each.suffix in MODELS]

    def is_others(file: Path) -> bool:
        named_after = [stem for stem in stems if file.name.startswith(f"{stem}.")]
        return file.suffix in MODELS or (bool(named_after) and model.stem not in named_after)

    return [model, *(each for each in beside if not is_others(each))]


def _key(files: list[Path], options: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, options], sort_keys=True, default=str).encode())
    for file in files:
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as source:
            while chunk := source.read(HASHED_AT_ONCE):
                digest.update(chunk)
    return digest.hexdigest()[:32]


async def _build(
    model: Path, output: Path, options: Mapping[str, Any], largest_batch: int, tell: Tell
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "ridgeline.serve.models.build_process",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None, "it was asked for"
    assert process.stdout is not None, "it was asked for"
    assert process.stderr is not None, "it was asked for"
    wanted = {
        "model": str(model), "output": str(output), "options": dict(options), "largest_batch": largest_batch,
    }  # fmt: skip
    said = asyncio.ensure_future(process.stderr.read())
    failed = "the build ended without a word"
    try:
        process.stdin.write(json.dumps(wanted).encode() + b"\n")
        process.stdin.close()
        async for line in process.stdout:
            message = json.loads(line)
            if "stage" in message:
                count = f" {message['done']}/{message['total']}" if message["total"] else ""
                tell(f"building: {message['stage']}{count}")
            failed = "" if message.get("done") else message.get("failed", failed)
        status = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        words = (await said).decode(errors="replace").strip().splitlines()
    if failed or status != 0:
        detail = f": {words[-1]}" if words and "without a word" in failed else ""
        raise LoadError(f"{failed}{detail} (status {status})" if detail else failed)
