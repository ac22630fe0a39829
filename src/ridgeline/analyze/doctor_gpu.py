"""Verdicts on one GPU, and on there being none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ridgeline.analyze.doctor_host import HostFacts
from ridgeline.analyze.doctor_rows import DoctorRow, Topic, size_text
from ridgeline.analyze.gpu_facts import IDLE, SETTING, GpuFacts

GPU = Topic("gpu")
HARMLESS = frozenset({IDLE, SETTING, "sync boost", "display clocks"})
BUSY_PERCENT = 5
NEAR_DEGREES = 5
NOT_OFFERED = "NVML does not offer it for this GPU or driver"
SLOWER_THAN_IT_COULD = "the same kernels run faster on a GPU of this type without this limit"


def judge_no_gpu(why: str, host: HostFacts) -> DoctorRow:
    """Without NVML: fine on a machine without a GPU, a problem on one that has a GPU on its bus."""
    if host.gpu_nodes:
        fix = "install the driver, or sudo modprobe nvidia; in a container: docker run --gpus all"
        return GPU.problem("GPU", f"{len(host.gpu_nodes)} on the PCI bus, none usable", why, fix)
    reason = f"{why}: engines for a CPU run here, and those for a GPU can be built"
    return GPU.note("GPU", "none", reason, "ridge build MODEL.onnx --target cuda:sm_90")


def judge_gpu(gpu: GpuFacts, host: HostFacts) -> Iterator[DoctorRow]:
    """Every row about one GPU."""
    topic = Topic(f"gpu {gpu.index}")
    yield topic.fine("GPU", f"{gpu.name} ({gpu.arch}), {gpu.pci_bus_id}", gpu.uuid)
    yield _clocks(topic, gpu)
    yield _throttling(topic, gpu)
    yield _power(topic, gpu)
    yield _temperature(topic, gpu)
    yield _memory(topic, gpu)
    yield _ecc(topic, gpu)
    yield _persistence(topic, gpu)
    yield _pcie(topic, gpu)
    yield _numa(topic, gpu, host)
    yield _compute_mode(topic, gpu)
    yield _mig(topic, gpu)
    yield _processes(topic, gpu)


def judge_mps(host: HostFacts) -> DoctorRow:
    """Whether processes share GPUs through CUDA's multi-process service."""
    if "server" in host.mps_processes:
        return GPU.distorts(
            "MPS", "a server runs", "kernels of several processes may run at the same time",
            "echo quit | nvidia-cuda-mps-control",
        )  # fmt: skip
    if host.mps_processes:
        reason = "the next CUDA program starts its server and shares the GPU with others"
        return GPU.note("MPS", "its daemon runs", reason, "echo quit | nvidia-cuda-mps-control")
    return GPU.fine("MPS", "off", "processes take turns on the GPU")


def judge_visible(settings: Mapping[str, str]) -> Iterator[DoctorRow]:
    """CUDA may see fewer GPUs than NVML does."""
    shown = settings.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        reason = "CUDA sees these GPUs alone, and numbers them from 0"
        yield GPU.note("visible", shown or "none", reason, "unset CUDA_VISIBLE_DEVICES")


def _clocks(topic: Topic, gpu: GpuFacts) -> DoctorRow:
    """NVML has no call that tells whether clocks are locked; the reasons of the moment say it under load."""
    if gpu.sm_clock is None or gpu.max_sm_clock is None:
        return topic.unknown("clocks", NOT_OFFERED)
    value = f"SM {gpu.sm_clock} of {gpu.max_sm_clock} MHz"
    if gpu.memory_clock is not None:
        value += f", memory {gpu.memory_clock} of {gpu.max_memory_clock} MHz"
    application = gpu.application_sm_clock
    if application is not None:
        value += f", application clock {application} MHz"
    if application is not None and application < (gpu.default_sm_clock or 0):
        reason = f"the application clock is below its default: {SLOWER_THAN_IT_COULD}"
        return topic.distorts("clocks", value, reason, f"sudo nvidia-smi -i {gpu.index} -rac")
    if SETTING in (gpu.clock_reasons or ()):
        return topic.fine("clocks", value, "locked, or set by application clocks: the same in every run")
    lock = f"sudo nvidia-smi -i {gpu.index} -lgc {gpu.max_sm_clock}"
    return topic.note("clocks", value, "not locked: they move with load, power and temperature", lock)


def _throttling(topic: Topic, gpu: GpuFacts) -> DoctorRow:
    if gpu.clock_reasons is None:
        return topic.unknown("throttling", NOT_OFFERED)
    harmful = [reason for reason in gpu.clock_reasons if reason not in HARMLESS]
    value = ", ".join(gpu.clock_reasons) or "nothing holds the clocks down"
    if not harmful:
        return topic.fine("throttling", value, "clocks are not lowered by power or heat")
    is_hot = any("thermal" in reason for reason in harmful)
    fix = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE; let it cool, look at fans and air flow"
    return topic.distorts(
        "throttling", value, f"clocks are lowered now ({', '.join(harmful)})",
        fix if is_hot else f"nvidia-smi -q -d PERFORMANCE,POWER; sudo nvidia-smi -i {gpu.index} -pl WATTS",
    )  # fmt: skip


def _power(topic: Topic, gpu: GpuFacts) -> DoctorRow:
    if gpu.power_limit is None:
        return topic.unknown("power", NOT_OFFERED)
    draw = "" if gpu.power is None else f"{gpu.power:.0f} W of "
    value = f"{draw}{gpu.power_limit:.0f} W"
    if gpu.power_default is not None and gpu.power_limit < gpu.power_default:
        fix = f"sudo nvidia-smi -i {gpu.index} -pl {gpu.power_default:.0f}"
        value += f", default {gpu.power_default:.0f} W"
        return topic.distorts("power", value, f"the limit is below the default: {SLOWER_THAN_IT_COULD}", fix)
    return topic.fine("power", value, "the limit is the default or above")


def _temperature(topic: Topic, gpu: GpuFacts) -> DoctorRow:
    if gpu.temperature is None:
        return topic.unknown("temperature", NOT_OFFERED)
    value = f"{gpu.temperature} °C"
    if gpu.memory_temperature is not None:
        value += f", memory {gpu.memory_temperature} °C"
    limit = gpu.slowdown_temperature
    if limit is None:
        return topic.fine("temperature", value, "NVML names no limit for this GPU")
    value += f", slows down at {limit} °C"
    if gpu.temperature < limit - NEAR_DEGREES:
        return topic.fine("temperature", value, "below the limit")
    fix = "let it cool; look at fans and air flow"
    return topic.distorts("temperature", value, "clocks are lowered at the limit", fix)


def _memory(topic: Topic, gpu: GpuFacts) -> DoctorRow:
    if gpu.memory_bytes is None or gpu.used_bytes is None:
        return topic.unknown("memory", NOT_OFFERED)
    value = f"{size_text(gpu.used_bytes)} of {size_text(gpu.memory_bytes)} used"
    if gpu.used_bytes > 0.9 * gpu.memory_bytes:
        fix = "nvidia-smi; end what is not needed"
        return topic.problem("memory", value, "hardly any memory is free: engines may not load", fix)
    return topic.fine("memory", value, "the rest is free")


def _ecc(topic: Topic, gpu: GpuFacts) -> DoctorRow:
    if gpu.ecc is None:
        return topic.fine("ECC", "none", "this GPU has none, or does not tell")
    mode = "on" if gpu.ecc else "off"
    if gpu.ecc_pending is not None and gpu.ecc_pending != gpu.ecc:
        mode += f", {'on' if gpu.ecc_pending else 'off'} after the next reset"
    errors = f"{gpu.corrected_errors or 0} corrected, {gpu.uncorrected_errors or 0} uncorrected errors"
    value = f"{mode}, {errors}" + (f", {gpu.remapped_rows} rows remapped" if gpu.remapped_rows else "")
    reset = f"sudo nvidia-smi -i {gpu.index} --gpu-reset"
    if gpu.remap_failed:
        return topic.problem("ECC", value, "a faulty row of memory could not be replaced", "replace the GPU")
    if gpu.uncorrected_errors:
        return topic.problem("ECC", value, "memory gave wrong data since the driver was loaded", reset)
    if gpu.remap_pending:
        return topic.note("ECC", value, "a faulty row of memory is replaced at the next reset", reset)
    if not gpu.ecc:
        reason = "errors in memory go unseen; GPUs with GDDR are faster so than with ECC"
        return topic.note("ECC", value, reason, f"sudo nvidia-smi -i {gpu.index} -e 1, then a reset")
    if gpu.corrected_errors:
        return topic.note("ECC", value, "errors were corrected: results are right, the memory ages", reset)
    return topic.fine("ECC", value, "memory is checked")


def _persistence(topic: Topic, gpu: GpuFacts) -> DoctorRow:
    if gpu.persistence is None:
        return topic.unknown("persistence", NOT_OFFERED)
    if gpu.persistence:
        return topic.fine("persistence", "on", "the driver stays loaded between programs")
    return topic.distorts(
        "persistence", "off",
        "the driver unloads between programs: starts take seconds longer, locked clocks are lost",
        f"sudo nvidia-smi -i {gpu.index} -pm 1",
    )  # fmt: skip


def _pcie(topic: Topic, gpu: GpuFacts) -> DoctorRow:
    generation, width = gpu.pcie_generation, gpu.pcie_width
    if generation is None or width is None:
        return topic.unknown("PCIe", NOT_OFFERED)
    most, widest = gpu.max_pcie_generation or generation, gpu.max_pcie_width or width
    value = f"generation {generation} of {most}, {width} of {widest} lanes"
    slot = "look at the slot, riser and BIOS: sudo lspci -vv -s " + gpu.pci_bus_id
    if width < widest:
        return topic.distorts(
            "PCIe", value, "copies to and from the host are slower than they should be", slot
        )
    if generation == most:
        return topic.fine("PCIe", value, "all that GPU and slot can do")
    if (gpu.utilization or 0) < BUSY_PERCENT:
        reason = "an idle link may sleep at a lower generation: look again under load"
        return topic.note(
            "PCIe", value, reason, "nvidia-smi --query-gpu=pcie.link.gen.current --format=csv -l 1"
        )
    return topic.distorts("PCIe", value, "under load, and still below what GPU and slot can do", slot)


def _numa(topic: Topic, gpu: GpuFacts, host: HostFacts) -> DoctorRow:
    node = host.gpu_nodes.get(gpu.pci_bus_id, -1)
    if len(host.numa_nodes) < 2:
        return topic.fine("NUMA", "one node", "all memory is equally near")
    near = set(host.numa_nodes.get(str(node), ()))
    if not near:
        return topic.unknown("NUMA", "the kernel does not say which node the GPU is attached to")
    own = set(host.cpus)
    value = f"GPU on node {node}, this process on {_nodes_text(own, host)}"
    bind = f"numactl --cpunodebind={node} --membind={node} ridge …"
    if not own & near:
        reason = "every copy and every launch crosses between processors"
        return topic.distorts("NUMA", value, reason, bind)
    if own - near:
        return topic.note("NUMA", value, "threads may run far from the GPU, and differ from run to run", bind)
    return topic.fine("NUMA", value, "the process runs next to the GPU")


def _nodes_text(cpus: set[int], host: HostFacts) -> str:
    nodes = [node for node, own in host.numa_nodes.items() if cpus & set(own)]
    return f"node {', '.join(nodes)}" if nodes else "no node"


def _compute_mode(topic: Topic, gpu: GpuFacts) -> DoctorRow:
    mode = gpu.compute_mode
    if mode is None:
        return topic.unknown("compute mode", NOT_OFFERED)
    fix = f"sudo nvidia-smi -i {gpu.index} -c DEFAULT"
    if mode == "prohibited":
        return topic.problem("compute mode", mode, "no CUDA program may use this GPU", fix)
    if mode != "default":
        return topic.note("compute mode", mode, "a second process cannot use the GPU meanwhile", fix)
    return topic.fine("compute mode", mode, "any process may use it")


def _mig(topic: Topic, gpu: GpuFacts) -> DoctorRow:
    if not gpu.mig:
        return topic.fine("MIG", "off" if gpu.mig is not None else "none", "the whole GPU is one device")
    return topic.distorts(
        "MIG", "on", "an instance has a part of the processors and memory: no figures of a whole GPU",
        f"sudo nvidia-smi -i {gpu.index} -mig 0",
    )  # fmt: skip


def _processes(topic: Topic, gpu: GpuFacts) -> DoctorRow:
    if not gpu.processes:
        return topic.fine("other processes", "none", "nothing else runs on this GPU")
    listed = [f"{each.name or 'process'} ({each.pid})" for each in gpu.processes]
    value = ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
    reason = "they take memory, and time whenever they run"
    return topic.distorts("other processes", value, reason, "nvidia-smi; end what is not needed")
