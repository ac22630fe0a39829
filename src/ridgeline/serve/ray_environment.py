"""What Ray reads from the environment, once, when it is imported: for whoever starts the process."""

from __future__ import annotations

ENVIRONMENT = {
    # on Linux Ray otherwise listens at every address of the machine, even when it is given the loopback one
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # nothing about the cluster is sent to Ray's makers
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray Serve's lines stay in its files: one for each request otherwise
    "RAY_SERVE_LOG_TO_STDERR": "0",
}
