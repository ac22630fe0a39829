// Who the engine is, and seven figures about it.

const TOO_HIGH = 1.05; // no engine is faster than its machine

function drawHeader() {
  const { summary } = data;
  byId("model-name").textContent = data.title;
  const shapes = summary.inputs.map((port) => `${port.name} ${port.dtype}[${(port.planned ?? []).join(",")}]`).join(", ");
  byId("model-line").textContent = `${summary.target}, ${plural(summary.threads, "thread")} · ${shapes}`;
  byId("model-line").title = shapes;
  byId("foot").textContent = `Made by ${data.madeBy}. This file loads nothing from elsewhere.`;
}

function card(label, value, detail, { tone = "", meter = null } = {}) {
  return el("div", { class: "card" },
    el("div", { class: "label" }, label), el("div", { class: `value ${tone}` }, value), meter, el("div", { class: "detail" }, detail));
}

// the unit smaller than the number
function figure(text) {
  const [number, ...unit] = text.split(" ");
  return [number, unit.length ? el("small", {}, ` ${unit.join(" ")}`) : null];
}

function drawCards() {
  const { summary } = data;
  const all = summary.memory.reduce((sum, row) => sum + row.nbytes, 0);
  const context = summary.memory.filter((row) => row.per_context).reduce((sum, row) => sum + row.nbytes, 0);
  const meter = data.roofline === null ? null
    : el("div", { class: "meter" }, el("i", { style: { width: `${Math.min(1, data.roofline) * 100}%` } }));
  byId("cards").append(
    card("Latency", figure(duration(data.latencyUs)), latencyDetail()),
    card("Steps", figure(count(data.steps.length)), `for ${plural(summary.nodes, "node")} in ${plural(data.regions.length, "region")}`),
    card("Of the roofline", figure(percent(data.roofline)), rooflineDetail(), { meter, tone: data.roofline > TOO_HIGH ? "warn" : "" }),
    card("Memory", figure(size(all)), `${size(context)} of it for each context`),
    verifiedCard(),
    card("Precision", summary.precision, precisionDetail()),
    card("Build", summary.build_s === null ? DASH : figure(duration(summary.build_s * 1e6)), buildDetail()));
}

function latencyDetail() {
  const { measured } = data;
  if (!measured) return data.latencyOf;
  return `${data.latencyOf}; ${duration(measured.total_p10_us)} to ${duration(measured.total_p90_us)} over ${plural(measured.rounds, "round")}`;
}

function rooflineDetail() {
  if (!areTimed) return "steps were not timed";
  if (!data.roof) return "no ceilings are known for this machine: ridge calibrate measures them";
  if (data.roofline === null) return "some step has no bound";
  if (data.roofline > TOO_HIGH) return `above the ceilings of ${data.roof.name}, so these are too low: ridge calibrate, while nothing else runs`;
  return `least time on ${data.roof.name} over the ${data.times === "predicted" ? "predicted time" : "time taken"}`;
}

function verifiedCard() {
  const { verdict, worst } = data.summary;
  if (verdict.verified) {
    const against = verdict.reference ? ` against ${verdict.reference}` : "";
    return card("Verified", "✓ yes", `${plural(verdict.checks, "check")}${against}; worst at ${percent(worst)} of its tolerance`, { tone: "good" });
  }
  if (verdict.failed) return card("Verified", "✗ no", `${verdict.failed} of ${plural(verdict.checks, "check")} failed`, { tone: "bad" });
  return card("Verified", verdict.unverified ? "not yet" : "no", verdict.unverified || "built with --verify off", { tone: "warn" });
}

function precisionDetail() {
  const { lowered } = data.summary;
  if (!lowered) return "the model's own types";
  const counts = Object.entries(lowered.nodes).map(([kind, number]) => `${count(number)} in ${kind}`).join(", ");
  const error = lowered.error === null ? "not judged yet" : `off ${errorSize(lowered.error)} of ${errorSize(lowered.budget)} allowed`;
  return `${counts ? `${lowered.counted}: ${counts}; ` : ""}${error}`;
}

function buildDetail() {
  const { summary } = data;
  const parts = [];
  if (summary.sites_timed) parts.push(`${plural(summary.sites_timed, "site")} timed`);
  if (summary.sites_cached) parts.push(`${count(summary.sites_cached)} from the cache`);
  if (summary.engines_built > 1) parts.push(`${summary.engines_built} engines built`);
  return parts.join(", ") || "nothing was timed";
}

// what takes longest in the profile, what limits it, and what to try
function drawHotSpots() {
  if (!data.hotSpots.length) return;
  const { measured } = data;
  byId("overview").append(el("div", { class: "box", style: { marginTop: "12px" } }, el("h3", {}, "Where to look first"),
    el("p", { class: "muted", style: { fontSize: "13px" } }, `The ${measured.bound} sets the pace: ${measured.bound_evidence}.`),
    dataTable({ rows: data.hotSpots, wraps: true, filter: false, what: "step", onRow: (row) => openStep(row.index), columns: [
      { title: "Step", value: (row) => row.index, show: (row) => `${row.index}. ${row.name}`, width: "minmax(120px, 1fr)" },
      { title: "Share", value: (row) => row.share, show: (row) => percent(row.share), numeric: true, width: "76px" },
      { title: "Could save", value: (row) => row.could_save_us, show: (row) => duration(row.could_save_us), numeric: true, width: "104px", hint: "its time less the least time that the ceilings allow" },
      { title: "Limited by", value: (row) => row.limiter, show: (row) => `${row.limiter}: ${row.evidence}`, width: "minmax(150px, 1.6fr)" },
      { title: "What to try", value: (row) => row.advice, show: (row) => el("span", {}, withCode(row.advice)), width: "minmax(170px, 2fr)" },
    ] })));
}

function drawNotes() {
  const notes = [...data.notes, ...data.summary.warnings, ...data.summary.slow_ops.map((op) => `slow: ${op}`), ...(data.measured?.notes ?? [])];
  byId("notes").append(...notes.map((note) => el("p", { class: "note" }, note)));
}
