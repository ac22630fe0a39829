"""Independent branches on streams of their own in the captured graph: what it gains, and where none are.

    python -m bench.streams_gpu [--only inception,chain] [--quick]

Each network is built as users build it. Its plan on one stream, the plan that the build chose, and the best
schedule by the estimate whatever the build chose run in turns as bound graphs; all must give the same bits.
Then contexts of one engine side by side, at batch 1, with and without. Rows go to $OUT or bench/results.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ridgeline
from ridgeline.analyze.bench import bench_alone
from ridgeline.analyze.bench_settings import BenchSettings
from ridgeline.analyze.streams import streams_text
from ridgeline.base.devices import device_of
from ridgeline.base.gpu_timing import interleave_graphs
from ridgeline.base.timing import paired_ratio
from ridgeline.plan.plan import Plan
from ridgeline.plan.stream_choice import Forecast, Task, best_schedule
from ridgeline.plan.streams import Schedule, needs_of, schedule_of, with_waits
from ridgeline.runtime.context import CudaContext
from ridgeline.runtime.device import current_device
from ridgeline.runtime.memory_report import variant_on

RESULTS = Path(__file__).parent / "results"
CONTEXTS = (1, 2, 4)
ROUNDS = 15


def conv(channels: int, columns: int, kernel: int, dilation: int = 1) -> nn.Module:
    padding = dilation * (kernel // 2)
    return nn.Sequential(nn.Conv2d(channels, columns, kernel, padding=padding, dilation=dilation), nn.ReLU())


class Inception(nn.Module):
    """The four branches of GoogLeNet's block 3b."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList([
            conv(channels, 128, 1),
            nn.Sequential(conv(channels, 128, 1), conv(128, 192, 3)),
            nn.Sequential(conv(channels, 32, 1), conv(32, 96, 5)),
            nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), conv(channels, 64, 1)),
        ])  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Aspp(nn.Module):
    """DeepLab's pyramid: a 1x1 convolution, three dilated ones, and the mean of the image."""

    def __init__(self, channels: int, columns: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList([conv(channels, columns, 1)])
        self.branches.extend(conv(channels, columns, 3, dilation) for dilation in (6, 12, 18))
        self.pooled, self.project = conv(channels, columns, 1), conv(5 * columns, columns, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.pooled(x.mean((2, 3), keepdim=True)).expand(-1, -1, x.shape[2], x.shape[3])
        made: Tensor = self.project(torch.cat([*(branch(x) for branch in self.branches), mean], 1))
        return made


class Chain(nn.Module):
    """Products, activations and norms, one behind the other."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.linears:
            x = self.norm(F.gelu(linear(x)))
        return x


class Towers(nn.Module):
    """Two chains that know nothing of each other, and how alike their results are."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.one, self.other = Chain(width, depth), Chain(width, depth)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cosine_similarity(self.one(x), self.other(y))


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    inputs: tuple[tuple[int, ...], ...]


CASES = {
    "inception": Case(lambda: nn.Sequential(*(Inception(c) for c in (256, 480, 480))), ((1, 256, 28, 28),)),
    "inception_b8": Case(
        lambda: nn.Sequential(*(Inception(c) for c in (256, 480, 480))), ((8, 256, 28, 28),)
    ),
    "aspp": Case(lambda: Aspp(2048, 256), ((1, 2048, 33, 33),)),
    "towers": Case(lambda: Towers(768, 12), ((1, 768), (1, 768))),
    "towers_b128": Case(lambda: Towers(768, 12), ((128, 768), (128, 768))),
    "chain": Case(lambda: Chain(768, 24), ((1, 768),)),
}


def estimate(plan: Plan) -> Forecast:
    """As selection makes it, from the times in the plan."""
    device = device_of(plan.target.arch)
    tasks = []
    for step, needs in zip(plan.steps, needs_of(plan.steps), strict=True):
        us = step.median_us or 0.0
        least_us = max(step.work.bytes / device.bytes, step.work.flops / device.flops)
        tasks.append(Task(us, min(1.0, max(0.05, least_us / us)) if us else 0.0, needs))
    return best_schedule(tasks)


def beside(plan: Plan) -> Schedule:
    """Side by side wherever the graph allows it, as if no step filled the device."""
    us = [step.median_us or 0.0 for step in plan.steps]
    tasks = [Task(t, 0.01, needs) for t, needs in zip(us, needs_of(plan.steps), strict=True)]
    return best_schedule(tasks).schedule


def run_case(name: str, *, seconds: float) -> dict[str, Any]:
    case = CASES[name]
    torch.manual_seed(0)
    inputs = tuple(torch.randn(shape).half().cuda() * 0.5 for shape in case.inputs)
    module = case.make().half().cuda().eval()
    engine = ridgeline.build(module, inputs, target="cuda", level=3, verify="fast")
    plan, variant = engine.plan, engine.variants[0]
    chosen, forecast = schedule_of(plan.steps), estimate(plan)
    one = engine.only(variant_on(variant, with_waits([0] * len(plan.steps), needs_of(plan.steps))))
    several = engine.only(variant_on(variant, chosen or beside(plan)))
    feeds = dict(zip((port.name for port in plan.inputs), inputs, strict=True))
    bound = []
    for each in (one, several):
        context = each.context()
        assert isinstance(context, CudaContext)
        bound.append(context.bind(feeds))
    results = [run.run() for run in bound]
    is_same = all(torch.equal(results[0][output], results[1][output]) for output in results[0])
    old, new = interleave_graphs([run.graph for run in bound], rounds=ROUNDS, min_sample_us=5000)
    used = several.plan
    row: dict[str, Any] = {
        "case": name, "steps": len(plan.steps), "verified": engine.report.verified, "same_bits": is_same,
        "chosen": "streams" if chosen is not None else "one stream", "why": plan.why,
        "streams_text": streams_text(plan), "estimated_gain": round(forecast.gain, 4),
        "streams": len({step.stream for step in used.steps}), "waits": sum(len(s.waits) for s in used.steps),
        "one_us": round(old.median_us, 3), "several_us": round(new.median_us, 3),
        "one_over_several": round(paired_ratio(old, new), 4),
        "arena_bytes": {"one": one.plan.memory.arena_bytes, "several": used.memory.arena_bytes},
        "notes": list(engine.notes), "contexts": [],
    }  # fmt: skip
    host = {port: tensor.cpu().numpy() for port, tensor in feeds.items()}
    for count in CONTEXTS:
        settings = BenchSettings(duration_s=seconds, concurrency=count, transfers=False)
        qps = [bench_alone(each, host, settings).report.rows[0].throughput_qps for each in (one, several)]
        row["contexts"].append({"contexts": count, "one_qps": round(qps[0]), "several_qps": round(qps[1])})
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--quick", action="store_true", help="a look, not a result")
    args = parser.parse_args()
    out = Path(os.environ.get("OUT", RESULTS)) / f"streams-h200-{date.today()}.json"
    made: dict[str, Any] = {
        "date": str(date.today()), "device": asdict(current_device()), "torch": torch.__version__, "rows": [],
    }  # fmt: skip
    for name in args.only.split(","):
        row = run_case(name, seconds=0.3 if args.quick else 1.5)
        print(json.dumps(row), flush=True)
        made["rows"].append(row)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
