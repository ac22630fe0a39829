// Charts: made when their place comes near the window, drawn again when colours or sizes change.

const charts = new Map(); // by name, for tests and for other sections

// `option()` is ECharts' option with the colours of now; `onClick` gets the data of a mark
function drawChart(place, name, option, { height = null, onClick = null } = {}) {
  if (height) place.style.height = `${height}px`;
  let chart = null;
  const draw = () => {
    if (!chart) return;
    chart.setOption({ ...common(), ...option(chart) }, { notMerge: true });
  };
  whenNear(place, () => {
    chart = echarts.init(place, null, { renderer: "canvas" });
    charts.set(name, chart);
    if (onClick) chart.on("click", (event) => { if (event.data) onClick(event.data, event); });
    draw();
    let width = place.clientWidth;
    new ResizeObserver(() => {
      if (place.clientWidth === width) return;
      width = place.clientWidth;
      chart.resize();
      draw();
    }).observe(place);
  });
  drawings.push(draw);
  return draw;
}

const common = () => ({
  animation: false,
  textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: colour("--text") },
  aria: { enabled: true },
});

// a tooltip is an element, so that names stay text
function tooltip(formatter, more = {}) {
  return {
    confine: true, backgroundColor: colour("--surface"), borderColor: colour("--line"), padding: [9, 12],
    textStyle: { color: colour("--text"), fontWeight: "normal" }, extraCssText: "box-shadow: 0 4px 18px rgb(0 0 0 / 18%); border-radius: 8px;",
    formatter: (event) => formatter(Array.isArray(event) ? event[0] : event) ?? "", ...more,
  };
}

function tip(title, pairs) {
  return el("div", { class: "tip" }, el("b", {}, title), pairs.map(([name, value]) =>
    el("div", { class: "pair" }, el("span", {}, name), el("span", {}, value))));
}

const stepTip = (step) => tip(`${step.index}. ${step.name}`, [
  ["ops", step.ops], ["tactic", step.tactic], ["time", `${duration(step.us)}, ${percent(step.share)}`],
  ["of the roofline", percent(step.roofline)], ["bandwidth", rate(achieved(step.bytes, step.us), "B")],
  ["arithmetic", rate(achieved(step.flops, step.us), "FLOP")], ["precision", step.precision],
]);

const axis = (more) => ({
  axisLine: { lineStyle: { color: colour("--line") } }, axisTick: { show: false }, axisLabel: { color: colour("--muted"), fontSize: 12, hideOverlap: true },
  splitLine: { lineStyle: { color: colour("--line"), opacity: 0.7 } }, nameTextStyle: { color: colour("--muted"), fontSize: 12 }, ...more,
});

const zoom = (more = {}) => [
  { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, preventDefaultMouseMove: false, ...more },
  { type: "slider", filterMode: "none", height: 18, bottom: 6, borderColor: "transparent", backgroundColor: colour("--raised"), fillerColor: colour("--accent-soft"),
    handleStyle: { color: colour("--accent") }, moveHandleSize: 0, showDataShadow: false, brushSelect: false, textStyle: { color: colour("--muted") }, labelFormatter: "", ...more },
];

const legendOf = (kinds) => el("div", { class: "legend" }, kinds.map((kind) => el("span", {}, dot(kind), kind)));
const kindsThere = Object.keys(CLASSES).filter((kind) => data.steps.some((step) => step.kind === kind));
const regionKinds = Object.keys(CLASSES).filter((kind) => data.regions.some((region) => region.step && region.kind === kind));
