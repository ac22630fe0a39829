"""Whether an engine file was made here. Compiled kernels are code: only files signed here are used unasked.

The signature (`seal` in the manifest) is a keyed hash over the hashes of the kernels. The key never leaves
this user's account, so nobody can forge a signature from one that is read in an engine file.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import platform
import secrets
from collections.abc import Mapping
from pathlib import Path

KEY_FILE = Path("~/.config/ridgeline/seal.key")
MACHINE_ID = Path("/etc/machine-id")
KEY_BYTES = 32


def sign_hashes(hashes: Mapping[str, str], *, key_file: Path = KEY_FILE) -> str:
    """The signature of these members by this user on this machine; "" where no key can be kept."""
    key = _read_key(key_file) or _new_key(key_file)
    return _signature(hashes, key) if key is not None else ""


def is_signed_here(signature: object, hashes: Mapping[str, str], *, key_file: Path = KEY_FILE) -> bool:
    key = _read_key(key_file)
    if key is None or not isinstance(signature, str) or not signature:
        return False
    return hmac.compare_digest(signature.encode(), _signature(hashes, key).encode())


def _signature(hashes: Mapping[str, str], key: bytes) -> str:
    machine = MACHINE_ID.read_text() if MACHINE_ID.exists() else ""
    text = json.dumps([platform.node(), machine, sorted(hashes.items())])
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _read_key(path: Path) -> bytes | None:
    try:
        key = path.expanduser().read_bytes()
    except (OSError, RuntimeError):  # none yet, or no home to keep it in
        return None
    return key if len(key) == KEY_BYTES else None


def _new_key(path: Path) -> bytes | None:
    try:
        place = path.expanduser()
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # for the owner alone, and never in place of a key that another process has just made
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
    except (OSError, RuntimeError):
        pass
    return _read_key(path)
