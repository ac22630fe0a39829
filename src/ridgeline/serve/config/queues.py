"""How requests wait and batch, where instances run, which versions are served: as a configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.serve.config.text import Problems
from ridgeline.serve.spec import BatchPolicy, InstanceGroup, QueuePolicy, VersionPolicy

MICROSECONDS = 1e6
MOST_LEVELS = 1000
MOST_INSTANCES = 64  # of a group, and groups
ACTIONS = ("REJECT", "DELAY")
KINDS = ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")


def read_batching(given: Any, max_batch_size: int, problems: Problems) -> BatchPolicy:
    place = "dynamic_batching"
    preferred = list(given.preferred_batch_size)
    if any(size < 1 for size in preferred):
        problems.add(f"{place}.preferred_batch_size", preferred, "sizes of 1 or more")
    levels, default = given.priority_levels, given.default_priority_level
    if levels > MOST_LEVELS:
        problems.add(f"{place}.priority_levels", levels, f"at most {MOST_LEVELS}")
    lowest = 1 if levels else 0
    if not lowest <= default <= levels:
        problems.add(
            f"{place}.default_priority_level", default, f"{lowest} to {levels}, as priority_levels says"
        )
    queues = given.priority_queue_policy
    for priority in sorted(queues):
        if not 1 <= priority <= levels:
            problems.add(
                f"{place}.priority_queue_policy", f"priority {priority}", f"1 to priority_levels, {levels}"
            )
    return BatchPolicy(
        max_batch=max(1, max_batch_size),
        preferred=tuple(sorted(set(preferred))),
        max_delay_s=given.max_queue_delay_microseconds / MICROSECONDS,
        preserve_ordering=given.preserve_ordering,
        priority_levels=levels,
        default_priority=default,
        queue=_queue(given.default_queue_policy),
        queues={priority: _queue(queues[priority]) for priority in sorted(queues)},
    )


def _queue(given: Any) -> QueuePolicy:
    return QueuePolicy(
        given.max_queue_size,
        given.default_timeout_microseconds / MICROSECONDS,
        "DELAY" if given.timeout_action == ACTIONS.index("DELAY") else "REJECT",
        given.allow_timeout_override,
    )


def read_instances(given: Sequence[Any], problems: Problems) -> tuple[InstanceGroup, ...]:
    """A group without a kind that lists GPUs is one of KIND_GPU, as many files have it."""
    problems.twice("instance_group", [each.name for each in given if each.name])
    if len(given) > MOST_INSTANCES:
        problems.add("instance_group", f"{len(given)} groups", f"at most {MOST_INSTANCES}")
    groups = []
    for at, each in enumerate(given):
        place = f"instance_group[{at}]"
        gpus = tuple(each.gpus)
        if not 0 <= each.count <= MOST_INSTANCES:
            problems.add(f"{place}.count", each.count, f"1 to {MOST_INSTANCES}")
        if any(gpu < 0 for gpu in gpus) or len(set(gpus)) < len(gpus) or len(gpus) > MOST_INSTANCES:
            problems.add(f"{place}.gpus", list(gpus), f"numbers of at most {MOST_INSTANCES} GPUs, each once")
        kind = KINDS[each.kind] if each.kind < len(KINDS) else "KIND_AUTO"
        if gpus and kind == "KIND_AUTO":
            kind = "KIND_GPU"
        if gpus and kind != "KIND_GPU":
            problems.add(f"{place}.gpus", list(gpus), f"none with {kind}")
        groups.append(InstanceGroup(each.count or 1, kind, gpus, each.name))  # type: ignore[arg-type]
    return tuple(groups) or (InstanceGroup(),)


def read_versions(given: Any, problems: Problems) -> VersionPolicy:
    kind = given.WhichOneof("policy_choice")
    if kind == "all":
        return VersionPolicy("all")
    if kind == "specific":
        versions = list(given.specific.versions)
        if not versions or any(version < 1 for version in versions):
            problems.add("version_policy.specific.versions", versions, "versions of 1 or more")
        problems.twice("version_policy.specific.versions", [str(version) for version in versions])
        return VersionPolicy("specific", versions=tuple(sorted(versions)))
    if kind == "latest" and not given.latest.num_versions:
        problems.add("version_policy.latest.num_versions", 0, "1 or more")
    return VersionPolicy("latest", given.latest.num_versions or 1)
