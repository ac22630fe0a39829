// The panel about one step: its time and limits, who else competed, what it computes, its kernels.

const LISTED = 40;
let opener = null; // gets the focus back

function openStep(index, regionName = null) {
  const step = stepAt(index);
  if (!step) return;
  const regions = regionsOf.get(index) ?? [];
  const picked = regions.filter((region) => region.name === regionName);
  fillPanel(`${step.index}. ${step.name}`, [step.kind, step.precision, step.tactic], [
    facts(step),
    step.evidence !== null ? part(`Limited by ${step.limiter}`, el("p", { class: "muted" }, shared(step.evidence))) : null,
    step.why !== null ? part("Why this tactic", el("p", { class: "muted" }, shared(step.why))) : null,
    step.notes.length ? part("Notes", step.notes.map((note) => el("p", { class: "note" }, shared(note)))) : null,
    part("Candidates", contestTable(data.contests[step.contest], step.us)),
    ...(picked.length ? picked : regions.slice(0, LISTED)).map((region) => regionPart(region, step, regions.length > 1)),
    regions.length > LISTED && !picked.length
      ? el("p", { class: "muted" }, `and ${plural(regions.length - LISTED, "more region")}; the graph shows them all`) : null,
    insidePart(step), workPart(step), kernelPart(step),
  ], picked[0] ?? regions[0]);
}

function openRegion(region) {
  if (region.step) return openStep(region.step, region.name);
  fillPanel(region.name, ["known before work starts"], [regionPart(region, null, false)], region);
}

function fillPanel(title, chips, parts, region) {
  const panel = byId("panel");
  if (panel.hidden) opener = document.activeElement;
  const toGraph = () => {
    if (innerWidth < 900) closePanel();
    graphView.show(region);
  };
  panel.replaceChildren(
    el("div", { class: "panel-top" },
      el("div", {}, el("h2", {}, title), el("div", { class: "chips" }, chips.map((chip) => el("span", { class: "chip" }, chip)))),
      region ? el("button", { class: "button", type: "button", onclick: toGraph }, "In graph") : null,
      el("button", { class: "button", type: "button", id: "panel-close", "aria-label": "Close", onclick: closePanel }, "✕")),
    ...parts.flat().filter(Boolean));
  panel.hidden = false;
  panel.scrollTop = 0;
  byId("panel-close").focus({ preventScroll: true });
}

function closePanel() {
  byId("panel").hidden = true;
  opener?.focus?.({ preventScroll: true });
}
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closePanel(); });

const part = (title, ...content) => el("div", {}, el("h3", {}, title), content);
const pairsOf = (rows) =>
  el("dl", { class: "facts" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

function facts(step) {
  return pairsOf([
    [`Time${data.times ? `, ${data.times}` : ""}`, duration(step.us)],
    ...(step.p10 !== null ? [["80 % of rounds", `${duration(step.p10)} to ${duration(step.p90)}`]] : []),
    ["Share of all steps", percent(step.share)],
    ["Of the roofline", percent(step.roofline)],
    ["Least time", step.bound === null ? DASH : `${duration(step.bound)}, by ${step.boundBy}`],
    ["Bytes", size(step.bytes)],
    ["Flops", scaled(step.flops, "FLOP")],
    ["Flops a byte", step.bytes && step.flops ? significant(step.flops / step.bytes) : DASH],
    ["Bandwidth", rate(achieved(step.bytes, step.us), "B")],
    ["Arithmetic", rate(achieved(step.flops, step.us), "FLOP")],
    ...(step.gap !== null ? [["Idle before it", duration(step.gap)]] : []),
    ["Nodes of the model", count(step.nodes)],
  ]);
}

function contestTable(contest, us) {
  const rows = [
    { name: `${contest.tactic} ${contest.config}`.trim(), us: contest.us ?? us, verdict: "chosen", behind: null, place: 0 },
    ...contest.losers.map(([tactic, config, time, late], i) => ({
      name: `${shared(tactic)} ${shared(config)}`.trim(), us: time, behind: late, place: i + 1,
      verdict: late === null || late > 0 ? "slower" : "within the margin",
    })),
    ...contest.refused.map(([tactic, reason], i) => ({
      name: shared(tactic), us: null, behind: null, verdict: shared(reason), place: 1000 + i,
    })),
  ];
  return dataTable({ rows, wraps: true, what: "candidate", columns: [
    { title: "Candidate", value: (row) => row.name, width: "minmax(110px, 1.3fr)",
      show: (row) => (row.place ? row.name : el("b", {}, row.name)) },
    { title: contest.predicted ? "Predicted" : "Time", value: (row) => row.us, numeric: true, width: "88px",
      show: (row) => (row.us === null ? "" : duration(row.us)) },
    { title: "Behind", value: (row) => row.behind, numeric: true, width: "74px",
      show: (row) => (row.behind === null ? "" : behind(row.behind)) },
    { title: "Verdict", value: (row) => row.verdict, width: "minmax(110px, 1.5fr)" },
  ] });
}

function regionPart(region, step, isOneOfMany) {
  const body = bodies.get(region.body);
  const hasOwn = isOneOfMany && region.contest !== null && step && region.contest !== step.contest;
  return part(isOneOfMany || !step ? `Region ${region.name}` : "What it computes",
    body ? bodyCode(body) : el("p", { class: "muted" }, region.ops.map(shared).join(" ")),
    names("Nodes of the model", region.nodes), names("Reads", region.inputs),
    names("Weights", region.weights), names("Makes", region.outputs),
    hasOwn ? el("details", {}, el("summary", {}, "Candidates for this region alone"), contestTable(data.contests[region.contest], null)) : null);
}

function bodyCode(body) {
  const lines = body.ops.slice(0, 200).map(([op, inputs, outputs, attributes]) => el("div", {},
    `${outputs.filter(Boolean).join(", ")} = `, el("b", {}, op), `(${inputs.map((name) => name || DASH).join(", ")})`,
    attributes ? el("span", {}, `  ${attributes}`) : null));
  const more = body.ops.length - lines.length;
  return el("div", { class: "code", tabindex: "0" }, lines, more > 0 ? el("div", {}, `… ${count(more)} more`) : null);
}

function names(title, list) {
  if (!list.length) return null;
  const items = list.slice(0, 300).map((name) => el("li", {}, name));
  const more = list.length - items.length;
  return el("details", { open: list.length <= 3 }, el("summary", {}, `${title} (${count(list.length)})`),
    el("ul", { class: "list" }, items, more > 0 ? el("li", {}, `… ${count(more)} more`) : null));
}

function insidePart(step) {
  if (!step.inside.length) return null;
  const most = step.inside[0][2];
  return part("Inside, by the library's own profiler", dataTable({ rows: step.inside, height: 260, what: "node", sort: [2, -1], columns: [
    { title: "Node", value: (row) => row[0], width: "minmax(140px, 2fr)" },
    { title: "Op", value: (row) => shared(row[1]), width: "minmax(80px, 1fr)" },
    { title: "Time", value: (row) => row[2], show: (row) => duration(row[2]), numeric: true, width: "84px" },
    { title: "", value: (row) => row[2], show: (row) => barCell(row[2] / most, "var(--accent)"), width: "90px" },
  ] }));
}

function workPart(step) {
  if (step.work.length < 2) return null;
  const flops = step.work.reduce((sum, row) => sum + row[1], 0), bytes = step.work.reduce((sum, row) => sum + row[2], 0);
  return part("Work by op", dataTable({ rows: step.work, height: 220, what: "op", columns: [
    { title: "Op", value: (row) => shared(row[0]) },
    { title: "Flops", value: (row) => row[1], show: (row) => scaled(row[1], "FLOP"), numeric: true, width: "104px" },
    { title: "of all", value: (row) => row[1], show: (row) => percent(flops ? row[1] / flops : null), numeric: true, width: "70px" },
    { title: "Bytes", value: (row) => row[2], show: (row) => size(row[2]), numeric: true, width: "96px" },
    { title: "of all", value: (row) => row[2], show: (row) => percent(bytes ? row[2] / bytes : null), numeric: true, width: "70px" },
  ] }));
}

function kernelPart(step) {
  const own = data.kernels.filter((kernel) => kernel.steps.includes(step.index));
  if (!own.length && !step.launches.length) return null;
  return part("Kernels", own.map((kernel) => pairsOf([
    ["Kernel", kernel.name], ["Registers", count(kernel.registers)], ["Spilled", size(kernel.spilled_bytes)],
    ["Shared memory", size(kernel.shared_bytes)], ["Warps", count(kernel.warps)],
    ["Blocks a processor", count(kernel.blocks_per_sm)], ["Occupancy", percent(kernel.occupancy)], ["Limited by", kernel.limited_by],
    ["Blocks that each allows", Object.entries(kernel.limits).map(([resource, blocks]) => `${resource} ${count(blocks)}`).join(", ")],
  ])), step.launches.length
    ? el("ul", { class: "list" }, step.launches.map(([name, , us]) => el("li", {}, `${duration(us)}  ${shared(name)}`))) : null);
}
