"""What a server logs: a line of text or of JSON for each event, and the settings that clients may change."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ridgeline.errors import visible
from ridgeline.serve.errors import invalid

ROOT = "ridgeline"
MOST_UINT32 = 2**32 - 1  # which is how gRPC tells it
LEVELS = {"log_error": logging.ERROR, "log_warning": logging.WARNING, "log_info": logging.INFO}
# what a `LogRecord` has by itself; whatever else it has was given with `extra`
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormat(logging.Formatter):
    """`time level logger: text`, in one line of printable characters."""

    def format(self, record: logging.LogRecord) -> str:
        text = visible(record.getMessage()).replace("\n", " | ")
        fields = "".join(f" {name}={value}" for name, value in _extra(record).items())
        name = record.name.removeprefix(f"{ROOT}.")
        line = f"{_when(record)} {record.levelname.lower():<7} {name}: {text}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormat(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": _when(record), "level": record.levelname.lower(), "logger": record.name,
            "event": record.getMessage(), **_extra(record),
        }  # fmt: skip
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def _when(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def log_to_stderr(*, as_json: bool) -> None:
    """Of this package alone, from INFO on; a second call replaces the first."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormat() if as_json else LineFormat())
    logger = logging.getLogger(ROOT)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)


class LogSettings:
    """The settings of the protocol's logging extension that mean something here."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {
            "log_file": "", "log_info": True, "log_warning": True, "log_error": True,
            "log_verbose_level": 0, "log_format": "default",
        }  # fmt: skip

    def change(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The settings after the change; all of it is made, or nothing."""
        for name, value in wanted.items():
            if name not in self._settings:
                raise invalid(f"log setting {name!r} is not known: {', '.join(self._settings)}")
            if name in LEVELS:
                fits = isinstance(value, bool)
            elif name == "log_verbose_level":
                fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_UINT32
            else:
                fits = value == self._settings[name]  # a client chooses neither files nor formats
            if not fits:
                raise invalid(f"log setting {name!r} cannot be {value!r}")
        self._settings |= wanted
        if wanted:
            logging.getLogger(ROOT).setLevel(self._level())
        return dict(self._settings)

    def _level(self) -> int:
        if self._settings["log_verbose_level"]:
            return logging.DEBUG
        on = [level for name, level in LEVELS.items() if self._settings[name]]
        return min(on, default=logging.CRITICAL)
