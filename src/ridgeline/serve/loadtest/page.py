"""Latency against throughput as one HTML file: a drawing in SVG and a table, no script, nothing loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10

from ridgeline.base.units import DASH, duration
from ridgeline.serve.loadtest.rows import PERCENTILES, LevelRow, LoadReport

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 860, 420, 70, 48, 16, 60
CURVES = {"50": "median", "95": "p95", "99": "p99"}
_STYLE = """
:root { --bg: #f5f6f8; --surface: #fff; --text: #18202c; --muted: #566171; --line: #dfe3e9;
  --p50: #0072b2; --p95: #b06f00; --p99: #b3261e; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --bg: #0e1217; --surface: #161b22; --text: #e7ebf1;
  --muted: #a2adbb; --line: #2a323d; --p50: #4ba3e3; --p95: #f0bd4a; --p99: #ff8a80; } }
body { margin: 0 auto; padding: 24px; max-width: 940px; background: var(--bg); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0; } p { color: var(--muted); margin: 0 0 16px; }
svg, .rows { background: var(--surface); border: 1px solid var(--line); border-radius: 10px; }
svg { width: 100%; height: auto; } svg text { fill: var(--muted); font-size: 12px; }
.grid { stroke: var(--line); } .bound { stroke: var(--muted); stroke-dasharray: 5 4; }
.p50 { --c: var(--p50); } .p95 { --c: var(--p95); } .p99 { --c: var(--p99); }
polyline { fill: none; stroke: var(--c); stroke-width: 2; } circle { fill: var(--c); }
svg .name { fill: var(--c); font-weight: 600; }
.rows { overflow-x: auto; margin-top: 16px; } table { border-collapse: collapse; width: 100%; }
th, td { padding: 5px 12px; text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: var(--muted); font-weight: 500; border-bottom: 1px solid var(--line); }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def load_page(report: LoadReport) -> str:
    """The whole page as text."""
    shapes = ", ".join(f"{name} {report.types[name]}{list(shape)}" for name, shape in report.shapes.items())
    loop = f"{report.loop} loop" + (f", {report.arrivals} arrivals" if report.arrivals else "")
    title = escape(f"{report.model} under load")
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
            f"<p>{escape(f'{report.url}, {loop}, {shapes}')}</p>",
            *_drawing(report),
            '<div class="rows"><table>',
            *_table(report),
            "</table></div>\n</body>\n</html>\n",
        )
    )


def _drawing(report: LoadReport) -> Iterator[str]:
    """Throughput to the right, latency upwards by powers of ten."""
    rows = [row for row in report.rows if row.percentiles_us]
    if not rows:
        return
    latencies = [row.percentiles_us[name] for row in rows for name in CURVES]
    low, high = floor(log10(max(min(latencies), 1))), ceil(log10(max(*latencies, 10)))
    high = max(high, low + 1)
    most = max(row.throughput_rps for row in rows) * 1.05 or 1.0

    def x(rate: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * rate / most

    def y(us: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (log10(max(us, 10**low)) - low) / (high - low)

    yield f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="latency against throughput">'
    for power in range(low, high + 1):
        yield _level(y(10**power), "grid", duration(10**power))
    for i in range(6):
        at = most * i / 5
        yield f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{at:,.0f}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">answered requests per second</text>'
    if report.p99_bound_us is not None and low <= log10(report.p99_bound_us) <= high:
        yield _level(y(report.p99_bound_us), "bound", "")
    for name, label in CURVES.items():
        places = [(x(row.throughput_rps), y(row.percentiles_us[name]), row) for row in rows]
        yield from _curve(f"p{name}", label, places, name)
    yield "</svg>"


def _level(at: float, kind: str, label: str) -> str:
    line = f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
    return line + f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'


def _curve(
    kind: str, label: str, places: Sequence[tuple[float, float, LevelRow]], name: str
) -> Iterator[str]:
    yield f'<g class="{kind}">'
    yield f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)}"/>'
    for x, y, row in places:
        latency = duration(row.percentiles_us[name])
        told = f"{row.level:g}: {row.throughput_rps:,.1f} requests/s, {label} {latency}"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{told}</title></circle>'
    x, y, _ = places[-1]
    yield f'<text class="name" x="{x + 8:.1f}" y="{y + 4:.1f}">{label}</text></g>'


def _table(report: LoadReport) -> Iterator[str]:
    level = "clients" if report.loop == "closed" else "asked/s"
    heads = (level, "requests/s", *(f"p{name}" for name in PERCENTILES), "errors", "queue", "compute")
    yield "<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"
    for row in report.rows:
        latencies = [duration(row.percentiles_us.get(name)) for name in PERCENTILES]
        server = (
            (duration(row.server.queue_us), duration(row.server.infer_us)) if row.server else (DASH, DASH)
        )
        cells = (
            f"{row.level:,.6g}",
            f"{row.throughput_rps:,.1f}",
            *latencies,
            sum(row.errors.values()),
            *server,
        )
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
