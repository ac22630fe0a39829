"""Who may ask what: keys from files, compared without telling how much of one was right."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Literal

from ridgeline.errors import OptionError
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.service import ADMIN, OPEN, Verb
from ridgeline.serve.settings import Keys

logger = logging.getLogger(__name__)

Asked = Verb | Literal["infer", "page"]  # all that a front end can be asked
FREE: frozenset[Asked] = OPEN | {"page"}  # the page itself says nothing: what it shows, it asks for
LOOK_EVERY_S = 1.0
OTHERS_MAY_READ = 0o004  # a group may: secrets of Kubernetes come with one
BEARER = "bearer "


class KeyFile:
    """Digests of the keys in a file, read again when the file changes."""

    def __init__(self, path: Path, clock: Callable[[], float] = monotonic) -> None:
        self.path, self._clock = path, clock
        self._looked = clock()
        try:
            self._stamp = self._stamp_of_file()
            self._digests = self._read()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"the keys in {path} cannot be read", got=str(error)) from error
        if not self._digests:
            raise OptionError(f"{path} holds no key", want="one key a line; '#' begins a comment")

    def holds(self, key: str) -> bool:
        """Takes as long for a wrong key as for a right one."""
        self._look()
        given, is_known = sha256(key.encode("utf-8", "surrogateescape")).digest(), False
        for digest in self._digests:
            is_known |= hmac.compare_digest(digest, given)
        return is_known

    @property
    def warning(self) -> str:
        """What is wrong with the file's permissions, or nothing."""
        if self.path.stat().st_mode & OTHERS_MAY_READ:
            return f"{self.path} can be read by other users of this machine: chmod 600 {self.path}"
        return ""

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        try:
            stamp = self._stamp_of_file()
            if stamp == self._stamp:
                return
            digests = self._read()
        except (OSError, UnicodeDecodeError) as error:
            # a file that is being replaced: the keys that were known go on to be
            logger.warning("the keys in %s cannot be read again: %s", self.path, error)
            return
        self._stamp, self._digests = stamp, digests
        logger.info("%d keys read again from %s", len(digests), self.path)

    def _stamp_of_file(self) -> tuple[int, int, int]:
        stat = os.stat(self.path)
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> list[bytes]:
        lines = self.path.read_text(encoding="utf-8").splitlines()
        keys = [line.partition("#")[0].strip() for line in lines]
        return [sha256(key.encode()).digest() for key in keys if key]


class Access:
    """One place where every request of every front end is let through, or not."""

    def __init__(self, keys: Keys) -> None:
        self._api = KeyFile(keys.api) if keys.api else None
        self._admin = KeyFile(keys.admin) if keys.admin else None

    @property
    def is_open(self) -> bool:
        """Nothing needs a key."""
        return self._api is None and self._admin is None

    @property
    def has_admin_keys(self) -> bool:
        return self._admin is not None

    def check(self, metadata: Mapping[str, str], verb: Asked) -> None:
        """`metadata` has names in lower case. `RequestError` unless its key allows the verb."""
        if verb in FREE:
            return
        if verb in ADMIN and self._admin is not None:
            self._check_admin(_key(metadata))
        elif self._api is not None:
            key = _key(metadata)
            # both are looked at: how long it takes tells nothing
            is_known, is_admin = self._api.holds(key), self._admin is not None and self._admin.holds(key)
            if not (is_known or is_admin):
                raise _unauthenticated(key)

    def warnings(self) -> list[str]:
        return [file.warning for file in (self._api, self._admin) if file is not None and file.warning]

    def _check_admin(self, key: str) -> None:
        assert self._admin is not None
        is_admin, is_known = self._admin.holds(key), self._api is not None and self._api.holds(key)
        if is_admin:
            return
        if is_known:
            raise RequestError(Kind.FORBIDDEN, "this key does not allow changes of the server")
        raise _unauthenticated(key)


def _key(metadata: Mapping[str, str]) -> str:
    authorization = metadata.get("authorization", "")
    if authorization[: len(BEARER)].lower() == BEARER:
        return authorization[len(BEARER) :].strip()
    return metadata.get("x-api-key", "")


def _unauthenticated(key: str) -> RequestError:
    return RequestError(
        Kind.UNAUTHENTICATED,
        "the key is not known here"
        if key
        else "a key is needed: Authorization: Bearer KEY, or X-API-Key: KEY",
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def why_not_serve(host: str, *, admin: bool, keys: Keys) -> str:
    """Why a server may not be started like this, or nothing."""
    if admin and keys.admin is None and not is_loopback(host):
        return (
            f"anyone who reaches {host} could load, replace and unload models: give a file of keys for"
            " admin calls, or serve them on 127.0.0.1"
        )
    return ""
