// The roofline: a point for every step under the ceilings of the machine, in logarithms of both axes.

function drawRoofline() {
  const { roof } = data;
  const counted = data.steps.filter((step) => step.us && step.flops && step.bytes);
  const onlyMoving = data.steps.filter((step) => step.us && !step.flops).length;
  const about = roof
    ? `Ceilings of ${roof.name}, ${roof.source}. A point near a line is as fast as the machine can be; its area is the time it takes.`
    : "Ceilings are not known for this machine, so only the steps are drawn: ridge calibrate measures them.";
  const aside = onlyMoving ? ` ${plural(onlyMoving, "step")} without arithmetic ${onlyMoving === 1 ? "is" : "are"} not on it.` : "";
  const section = sectionHead("roofline", about + aside);
  if (!counted.length) {
    section.append(el("div", { class: "box" }, empty(areTimed ? "No step does arithmetic." : "The steps of this engine were not timed.",
      areTimed ? null : "ridge report ENGINE --profile")));
    return;
  }
  const place = el("div", { class: "chart" });
  section.append(el("div", { class: "box" }, place, legendOf(kindsThere)));
  const range = axisRange(counted, roof);
  drawChart(place, "roofline", (chart) => ({
    grid: { left: 74, right: 24, top: 24, bottom: 46 },
    tooltip: tooltip((event) => (event.data.step ? stepTip(event.data.step) : tip(event.data.label ?? event.seriesName, []))),
    xAxis: axis({ type: "log", min: range.x[0], max: range.x[1], name: "flops for each byte", nameLocation: "middle", nameGap: 28,
      axisLabel: { color: colour("--muted"), formatter: (value) => significant(value) } }),
    yAxis: axis({ type: "log", min: range.y[0], max: range.y[1],
      axisLabel: { color: colour("--muted"), formatter: (value) => rate(value, "FLOP") } }),
    series: [...ceilings(roof, range, chart.getWidth()), ...kindsThere.map((kind) => points(kind, counted, chart.getWidth() < 500 ? 16 : 27))],
  }), { onClick: (mark) => { if (mark.step) openStep(mark.step.index); } });
}

function axisRange(steps, roof) {
  const x = steps.map((step) => step.flops / step.bytes), y = steps.map((step) => step.flops / step.us);
  const ridges = roof ? Object.values(roof.flops_per_us).map((peak) => peak / roof.bytes_per_us) : [];
  const peaks = roof ? Object.values(roof.flops_per_us) : [];
  const low = (values) => 10 ** Math.floor(Math.log10(Math.min(...values)) - 0.1);
  const high = (values) => 10 ** Math.ceil(Math.log10(Math.max(...values)) + 0.1);
  return { x: [low(x), high([...x, ...ridges])], y: [low(y), high([...y, ...peaks])] };
}

function points(kind, steps, most) {
  const longest = Math.max(...steps.map((step) => step.us));
  return {
    name: kind, type: "scatter", symbol: CLASSES[kind][1], z: 3,
    itemStyle: { color: classColour(kind), opacity: 0.72, borderColor: colour("--surface"), borderWidth: 1 }, emphasis: { itemStyle: { opacity: 1 } },
    data: steps.filter((step) => step.kind === kind).map((step) => ({
      value: [step.flops / step.bytes, step.flops / step.us], step, symbolSize: 7 + most * Math.sqrt(step.us / longest),
    })),
  };
}

// one line for memory up to the highest peak, and a flat one for each type
function ceilings(roof, range, width) {
  if (!roof) return [];
  const [from, to] = range.x;
  const peaks = Object.entries(roof.flops_per_us).sort((a, b) => b[1] - a[1]);
  const line = (name, ends, label, isSlope = false) => ({ // with its label at the second point
    name, type: "line", silent: true, symbol: "circle", symbolSize: 0.1, z: 2, lineStyle: { color: colour("--muted"), width: 1.6 },
    data: ends.map((value, i) => ({ value, label: { show: i === 1, formatter: label, position: isSlope && width < 500 ? "right" : "left", color: colour("--muted"), fontSize: width < 500 ? 10 : 12, offset: isSlope && width < 500 ? [4, 8] : [0, -11] } })),
  });
  const highest = peaks.length ? peaks[0][1] : range.y[1];
  const start = Math.max(from, range.y[0] / roof.bytes_per_us);
  const ridge = highest / roof.bytes_per_us, middle = Math.sqrt(start * ridge);
  const lines = [];
  if (roof.cache_bytes_per_us) {
    const top = highest / roof.cache_bytes_per_us, low = Math.max(from, range.y[0] / roof.cache_bytes_per_us);
    const cached = line("cache", [low, Math.sqrt(low * top), top].map((x) => [x, x * roof.cache_bytes_per_us]), `caches ${rate(roof.cache_bytes_per_us, "B")}`, true);
    lines.push({ ...cached, lineStyle: { ...cached.lineStyle, type: "dashed", width: 1.2 } });
  }
  lines.push(line("memory", [start, middle, ridge].map((x) => [x, x * roof.bytes_per_us]), `memory ${rate(roof.bytes_per_us, "B")}`, true));
  for (const [kind, peak] of peaks)
    lines.push(line(kind, [[peak / (roof.cache_bytes_per_us ?? roof.bytes_per_us), peak], [to, peak]], `${kind} ${rate(peak, "FLOP")}`));
  return lines;
}
