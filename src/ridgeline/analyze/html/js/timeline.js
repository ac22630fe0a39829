// The timeline of a profiled run: steps where they ran, the kernels they launched, and what the host did.

function drawTimeline() {
  const { measured } = data;
  if (!measured) {
    sectionHead("timeline", "").append(el("div", { class: "box" },
      empty("A timeline needs a profile of this engine.", "ridge report ENGINE --profile")));
    return;
  }
  const covered = `Steps${measured.gaps_us === null ? "" : " and gaps"} make up ${percent(measured.coverage)} of ${duration(measured.total_us)}.`;
  const section = sectionHead("timeline", `Measured by ${measured.how} on ${measured.device}, ${plural(measured.rounds, "round")}. ${covered} Drag the handles to zoom.`);
  const place = el("div", { class: "chart" });
  section.append(el("div", { class: "box" }, place, legendOf(kindsThere)));
  const bars = timelineBars();
  const tracks = [...new Set(bars.map((bar) => bar.track))];
  const end = Math.max(measured.total_us, ...bars.map((bar) => bar.start + bar.us));
  drawChart(place, "timeline", () => ({
    grid: { left: 70, right: 20, top: 10, bottom: 56 },
    tooltip: tooltip((event) => (event.data.step ? tip(event.data.title, [["start", duration(event.data.value[1])], ["time", duration(event.data.value[2])],
      ["tactic", event.data.step.tactic], ["idle before it", duration(event.data.step.gap)]]) : tip(event.data.title, [["time", duration(event.data.value[2])]]))),
    xAxis: axis({ type: "value", min: 0, max: end, axisLabel: { color: colour("--muted"), formatter: (value) => duration(value) } }),
    yAxis: axis({ type: "category", inverse: true, data: tracks, splitLine: { show: false } }),
    dataZoom: zoom({ xAxisIndex: 0 }),
    series: [{ type: "custom", clip: true, renderItem: timelineBar, encode: { x: [1, 3], y: 0 },
      data: bars.map((bar) => ({ value: [tracks.indexOf(bar.track), bar.start, bar.us, bar.start + bar.us], ...bar,
        itemStyle: { color: bar.step ? classColour(bar.step.kind) : colour("--faint") } })) }],
  }), { height: 92 + 64 * tracks.length, onClick: (mark) => { if (mark.step) openStep(mark.step.index); } });
}

function timelineBars() {
  const bars = [];
  const { host, total_us: total } = data.measured;
  for (const step of data.steps) {
    if (step.start !== null) bars.push({ track: "steps", start: step.start, us: step.us, title: `${step.index}. ${step.name}`, step });
    for (const [name, start, us] of step.launches) bars.push({ track: "kernels", start, us, title: shared(name), step });
  }
  if (host.enqueue_us !== null) bars.push({ track: "host", start: 0, us: host.enqueue_us, title: "the host queues one run", step: null });
  bars.push({ track: "run", start: 0, us: total, title: "the whole run", step: null });
  return bars;
}

function timelineBar(params, api) {
  const [x, y] = api.coord([api.value(1), api.value(0)]);
  const width = Math.max(api.size([api.value(2), 0])[0], 1), height = Math.min(34, api.size([0, 1])[1] * 0.62);
  const shape = echarts.graphic.clipRectByRect({ x, y: y - height / 2, width, height },
    { x: params.coordSys.x, y: params.coordSys.y, width: params.coordSys.width, height: params.coordSys.height });
  return shape && { type: "rect", shape: { ...shape, r: width > 6 ? 2 : 0 }, style: { fill: api.visual("color"), stroke: colour("--surface"), lineWidth: width > 3 ? 1 : 0 } };
}
