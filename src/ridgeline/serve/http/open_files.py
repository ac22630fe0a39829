"""Files that a process may have open: each connection is one, and many systems allow 1024 at first."""

from __future__ import annotations

import logging
import resource

SPARE_FILES = 512  # engines, workers and logs, and connections that are told that there are too many
logger = logging.getLogger(__name__)


def room_for(connections: int) -> int:
    """How many connections fit, after the limit of open files is raised as far as they need and it may be."""
    needed = connections + SPARE_FILES
    allowed = _raise_limit(needed)
    if allowed >= needed:
        return connections
    fit = max(allowed - SPARE_FILES, allowed // 2)
    if fit >= connections:
        return connections
    logger.warning(
        "%d connections are taken, not %d: this process may open %d files; raise its limit (ulimit -Hn)",
        fit, connections, allowed,
    )  # fmt: skip
    return fit


def _raise_limit(needed: int) -> int:
    """The limit afterwards."""
    soft, hard = (_number(limit, needed) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    wanted = min(needed, hard)
    if wanted <= soft:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    except (OSError, ValueError) as error:
        logger.debug("the limit of open files stays at %d: %s", soft, error)
        return soft
    return wanted


def _number(limit: int, needed: int) -> int:
    return needed if limit == resource.RLIM_INFINITY else limit
