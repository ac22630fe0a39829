// Where the time goes: a bar for every step, and sums by kind of op, tactic, precision and part of the model.

const GROUPINGS = {
  kind: ["Kind of op", (step) => step.kind], tactic: ["Tactic", (step) => step.tactic],
  precision: ["Precision", (step) => step.precision], layer: ["Layer", (step) => layerOf(step)],
};

// /encoder/layer.3/attention/MatMul is in encoder/layer.3
function layerOf(step) {
  const parts = step.name.split(/[/]/).filter(Boolean);
  return parts.length > 1 ? parts.slice(0, Math.min(2, parts.length - 1)).join("/") : "(top)";
}

function drawLayers() {
  let order = "order", grouping = "kind";
  const about = { profiled: "Times as they were profiled.", "timed in the build": "Times of each step alone, as the build took them when it chose.",
    predicted: "Times are predicted: this engine has not run yet." }[data.times] ?? "";
  const section = sectionHead("time", `${about} A line across a bar is the least time that the ceilings allow.`,
    choice("Order of the bars", { order: "In order", slowest: "Slowest first" }, order, (key) => { order = key; redraw(); }));
  if (!areTimed) {
    section.append(el("div", { class: "box" }, empty("The steps of this engine were not timed.", "ridge report ENGINE --profile")));
    return;
  }
  const bars = el("div", { class: "chart" }), sums = el("div", { class: "chart" });
  section.append(el("div", { class: "box" }, bars, legendOf(kindsThere)),
    el("div", { class: "box", style: { marginTop: "12px" } },
      el("div", { class: "head" }, el("div", {}, el("h3", {}, "Sums")),
        el("div", { class: "tools" }, choice("Sum by", Object.fromEntries(Object.entries(GROUPINGS).map(([key, [title]]) => [key, title])), grouping,
          (key) => { grouping = key; resum(); }))), sums));
  const redraw = drawChart(bars, "layers", () => barOption(order), { height: 330, onClick: (mark) => openStep(mark.step.index) });
  const resum = drawChart(sums, "sums", (chart) => {
    const rows = sumRows(grouping);
    sums.style.height = `${34 * rows.length + 14}px`;
    chart.resize();
    return sumOption(rows, grouping);
  });
}

function barOption(order) {
  const steps = order === "order" ? data.steps : [...data.steps].sort((a, b) => (b.us ?? 0) - (a.us ?? 0));
  const many = steps.length > 60;
  return {
    grid: { left: 66, right: 18, top: 16, bottom: many ? 70 : 42 },
    tooltip: tooltip((event) => stepTip(event.data.step), { trigger: "item" }),
    xAxis: axis({ type: "category", data: steps.map((step) => String(step.index)), name: "step", nameLocation: "middle", nameGap: 24, splitLine: { show: false } }),
    yAxis: axis({ type: "value", axisLabel: { color: colour("--muted"), formatter: (value) => duration(value) } }),
    dataZoom: many ? zoom({ startValue: 0, endValue: Math.min(steps.length, 400) - 1 }) : [],
    series: [
      { type: "bar", barCategoryGap: many ? "6%" : "22%", barMaxWidth: 34, barMinHeight: 2,
        data: steps.map((step) => ({ value: step.us, step, itemStyle: { color: classColour(step.kind), borderRadius: [2, 2, 0, 0] } })) },
      { type: "custom", silent: true, clip: true, z: 4, data: steps.map((step, i) => [i, step.bound ?? NaN]), encode: { x: 0, y: 1 }, renderItem: (params, api) => {
        const [x, y] = api.coord([api.value(0), api.value(1)]);
        if (!Number.isFinite(y) || !api.value(1)) return null;
        const half = Math.max(2, Math.min(22, api.size([1, 0])[0] * 0.5));
        return { type: "line", shape: { x1: x - half, x2: x + half, y1: y, y2: y }, style: { stroke: colour("--text"), lineWidth: 1.6 } };
      } },
    ],
  };
}

function sumRows(grouping) {
  const groups = new Map();
  for (const step of data.steps) {
    const key = GROUPINGS[grouping][1](step);
    const sum = groups.get(key) ?? { us: 0, steps: 0, bound: 0, kind: step.kind, precision: step.precision };
    groups.set(key, { ...sum, us: sum.us + (step.us ?? 0), steps: sum.steps + 1, bound: step.bound === null || sum.bound === null ? null : sum.bound + step.bound });
  }
  return [...groups].sort((a, b) => b[1].us - a[1].us).slice(0, 12).reverse();
}

function sumOption(rows, grouping) {
  const fill = (sum) => (grouping === "kind" ? classColour(sum.kind) : grouping === "precision" ? precisionColour(sum.precision) : colour("--accent"));
  return {
    grid: { left: 12, right: 96, top: 6, bottom: 6, containLabel: true },
    tooltip: tooltip((event) => tip(event.data.name, [["time", duration(event.data.value)], ["share", percent(event.data.value / totalUs)],
      ["steps", count(event.data.sum.steps)], ["of the roofline", percent(event.data.sum.bound === null || !event.data.value ? null : event.data.sum.bound / event.data.value)]])),
    xAxis: axis({ type: "value", show: false }),
    yAxis: axis({ type: "category", data: rows.map(([name]) => name), axisLine: { show: false },
      axisLabel: { color: colour("--text"), fontSize: 12.5, width: innerWidth < 700 ? 110 : 240, overflow: "truncate" } }),
    series: [{ type: "bar", barMaxWidth: 20, data: rows.map(([name, sum]) => ({ name, value: sum.us, sum, itemStyle: { color: fill(sum), borderRadius: 3 } })),
      label: { show: true, position: "right", color: colour("--muted"), formatter: (event) => `${duration(event.data.value)}, ${percent(totalUs ? event.data.value / totalUs : null)}` } }],
  };
}
