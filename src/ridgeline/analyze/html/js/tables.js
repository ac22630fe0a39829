// The sections that are tables: steps, refusals, kernels, verification, environment.

// what in the model costs time, what a change would gain, and the change
function drawFindings() {
  const more = data.notLookedFor ? `${plural(data.notLookedFor, "kind")} of findings need the engine itself: \`ridge report ENGINE --profile\` or \`ridge explain ENGINE --findings\` looks for all.` : "";
  const aside = (text) => el("p", { class: "muted", style: { fontSize: "13px", marginTop: "10px" } }, withCode(text));
  if (!data.findings.length) {
    byId("findings").remove();
    byId("overview").append(aside(more ? `The plan alone shows nothing to change in the model. ${more}` : "No findings: no change of the model is known to gain time."));
    return;
  }
  const section = sectionHead("findings", "What in the model costs time, and the change that would gain it. Gains are those of the cost model.");
  section.append(el("div", { class: "box" }, dataTable({ rows: data.findings, wraps: true, what: "finding", onRow: openFinding, columns: [
    { title: "Severity", value: (row) => row.share ?? -1, show: (row) => el("span", { class: `chip severity-${row.severity}` }, row.severity), width: "92px" },
    { title: "Gain", value: (row) => row.gain_us, show: (row) => duration(row.gain_us), numeric: true, width: "84px" },
    { title: "of the run", value: (row) => row.share, show: (row) => percent(row.share), numeric: true, width: "88px" },
    { title: "What", value: (row) => row.what, width: "minmax(170px, 2fr)", show: (row) => el("span", {}, withCode(row.what)) },
    { title: "Change", value: (row) => row.change, width: "minmax(170px, 2fr)", show: (row) => el("span", {}, withCode(row.change)) },
    { title: "At", value: (row) => row.node, width: "minmax(120px, 1fr)", show: (row) => row.node + (row.nodes > 1 ? ` and ${count(row.nodes - 1)} more` : "") },
  ] }), more ? aside(more) : null));
}

// the step that a finding is about: by its name, else by its first node
function openFinding(row) {
  const step = data.steps.find((each) => each.name === row.step)
    ?? stepAt(data.regions.find((region) => region.nodes.includes(row.node))?.step);
  if (step) openStep(step.index);
}

function drawSteps() {
  const most = Math.max(1e-9, ...data.steps.map((step) => step.share ?? 0));
  const section = sectionHead("steps", "Every step in order. A click opens one.");
  section.append(el("div", { class: "box" }, dataTable({ rows: data.steps, what: "step", onRow: (step) => openStep(step.index), columns: [
    { title: "#", value: (step) => step.index, numeric: true, width: "60px" },
    { title: "Step", value: (step) => step.name, width: "minmax(150px, 2fr)" },
    { title: "Time", value: (step) => step.us, show: (step) => duration(step.us), numeric: true, width: "88px" },
    { title: "Share", value: (step) => step.share, show: (step) => percent(step.share), numeric: true, width: "86px" },
    { title: "", value: (step) => step.share, show: (step) => barCell(step.share / most, `var(${(CLASSES[step.kind] ?? CLASSES.other)[0]})`), width: "92px" },
    { title: "Ops", value: (step) => step.ops, width: "minmax(150px, 1.4fr)" },
    { title: "Kind", value: (step) => step.kind, show: (step) => el("span", {}, dot(step.kind), step.kind), width: "146px" },
    { title: "Precision", value: (step) => step.precision, width: "96px" },
    { title: "Tactic", value: (step) => step.tactic, width: "minmax(130px, 1fr)" },
    { title: "Roofline", value: (step) => step.roofline, show: (step) => percent(step.roofline), numeric: true, width: "88px", hint: "its least time as a share of its time" },
    ...(data.steps.some((step) => step.limiter) ? [{ title: "Limited by", value: (step) => step.limiter, width: "112px" }] : []),
    { title: "Bandwidth", value: (step) => achieved(step.bytes, step.us), show: (step) => rate(achieved(step.bytes, step.us), "B"), numeric: true, width: "108px" },
    { title: "Arithmetic", value: (step) => achieved(step.flops, step.us), show: (step) => rate(achieved(step.flops, step.us), "FLOP"), numeric: true, width: "122px" },
    { title: "Bytes", value: (step) => step.bytes, show: (step) => size(step.bytes), numeric: true, width: "92px" },
    { title: "Flops", value: (step) => step.flops, show: (step) => scaled(step.flops, "FLOP"), numeric: true, width: "108px" },
  ] })));
}

function drawRefused() {
  const lost = data.unfused.reduce((sum, row) => sum + (row.bytes_lost ?? 0), 0);
  const section = sectionHead("refused", `What was not fused, and which tactics would not run a region, each with its reason.${lost ? ` Values that could have stayed in registers: ${size(lost)}.` : ""}`);
  section.append(
    el("div", { class: "box" }, el("h3", {}, "Fusions that did not happen"), data.unfused.length ? dataTable({ rows: data.unfused, wraps: true, what: "refusal", sort: [3, -1], columns: [
      { title: "Rule", value: (row) => row.rule, width: "minmax(90px, .7fr)" },
      { title: "Reason", value: (row) => row.reason, width: "minmax(160px, 2fr)" },
      { title: "Times", value: (row) => row.count, show: (row) => count(row.count), numeric: true, width: "70px" },
      { title: "Bytes lost", value: (row) => row.bytes_lost, show: (row) => size(row.bytes_lost), numeric: true, width: "116px" },
      { title: "At", value: (row) => row.nodes[0], show: (row) => nodeList(row.nodes, row.count), width: "minmax(130px, 1.4fr)" },
    ] }) : empty("Nothing that fitted was refused.")),
    el("div", { class: "box" }, el("h3", {}, "Tactics that refused"), data.unwilling.length ? dataTable({ rows: data.unwilling, wraps: true, what: "tactic", sort: [1, -1], columns: [
      { title: "Tactic", value: (row) => row.tactic, width: "minmax(110px, .8fr)" },
      { title: "Regions", value: (row) => row.regions, show: (row) => count(row.regions), numeric: true, width: "98px" },
      { title: "Reasons, the most frequent first", value: (row) => row.reasons[0], show: (row) => reasonList(row.reasons), width: "minmax(180px, 3fr)" },
    ] }) : empty("No tactic refused a region.")));
  if (data.runs.length)
    section.append(el("div", { class: "box" }, el("h3", {}, "What is in which CUDA graph"), dataTable({ rows: data.runs, wraps: true, what: "part", columns: [
      { title: "Of", value: (row) => row.of, width: "minmax(90px, .6fr)" },
      { title: "Run as", value: (row) => row.as, width: "110px" },
      { title: "Steps", value: (row) => row.steps, width: "minmax(130px, 1.4fr)" },
      { title: "Why not in a graph", value: (row) => row.why, width: "minmax(160px, 2fr)" },
    ] })));
  if (data.alternatives.length > 1)
    section.append(el("div", { class: "box" }, el("h3", {}, "Whole plans compared"), el("p", { class: "muted" }, data.why), dataTable({ rows: data.alternatives, wraps: true, what: "plan", columns: [
      { title: "Plan", value: (row) => row.name, show: (row) => (row.is_chosen ? el("b", {}, row.name) : row.name) },
      { title: "Total", value: (row) => row.total_us, show: (row) => duration(row.total_us), numeric: true, width: "96px" },
      { title: "Behind", value: (row) => row.behind, show: (row) => (row.is_chosen || row.refused ? "" : behind(row.behind)), numeric: true, width: "84px" },
      { title: "", value: (row) => row.refused, show: (row) => (row.is_chosen ? "chosen" : row.refused), width: "minmax(120px, 1.5fr)" },
    ] })));
}

const nodeList = (nodes, all) => (nodes.length < 2 ? nodes[0] ?? DASH
  : el("details", { style: { margin: 0 } }, el("summary", {}, `${nodes[0]} and ${count(all - 1)} more`), nodes.slice(1).map((name) => el("div", {}, name)),
    all > nodes.length ? el("div", {}, `… ${count(all - nodes.length)} more`) : null));
const reasonList = (reasons) => (reasons.length < 2 ? reasons[0]
  : el("details", { style: { margin: 0 } }, el("summary", {}, `${reasons[0]} (and ${plural(reasons.length - 1, "other reason")})`), reasons.slice(1).map((reason) => el("div", {}, reason))));

function drawKernels() {
  if (!data.kernels.length) {
    byId("kernels").remove();
    return;
  }
  const section = sectionHead("kernels", "GPU kernels of our own in this engine, and what each takes of a processor.");
  section.append(el("div", { class: "box" }, dataTable({ rows: data.kernels, what: "kernel", onRow: (row) => openStep(row.steps[0]), height: 340, columns: [
    { title: "Kernel", value: (row) => row.name, width: "minmax(190px, 2fr)" },
    { title: "Tactic", value: (row) => row.tactic, width: "minmax(140px, 1fr)" },
    { title: "Steps", value: (row) => row.steps.length, show: (row) => count(row.steps.length), numeric: true, width: "76px" },
    { title: "Registers", value: (row) => row.registers, show: (row) => count(row.registers), numeric: true, width: "96px" },
    { title: "Spilled", value: (row) => row.spilled_bytes, show: (row) => size(row.spilled_bytes), numeric: true, width: "86px" },
    { title: "Shared memory", value: (row) => row.shared_bytes, show: (row) => size(row.shared_bytes), numeric: true, width: "138px" },
    { title: "Warps", value: (row) => row.warps, show: (row) => count(row.warps), numeric: true, width: "76px" },
    { title: "Occupancy", value: (row) => row.occupancy, show: (row) => percent(row.occupancy), numeric: true, width: "100px" },
    { title: "Limited by", value: (row) => row.limited_by, width: "130px" },
  ] })));
}

function drawVerification() {
  const { verdict } = data.summary;
  const section = sectionHead("verification", verdict.reference ? `Outputs of the engine against ${verdict.reference}, each with the tolerance that was computed for it.` : "");
  if (!data.checks.length) {
    section.append(el("div", { class: "box" }, empty(verdict.unverified || "This engine was built with --verify off.", "ridge verify ENGINE --model MODEL")));
    return;
  }
  const used = (row) => (row.max_error === 0 ? 0 : row.max_error === null ? 1 : row.tolerance ? row.max_error / row.tolerance : 1);
  section.append(el("div", { class: "box" }, dataTable({ rows: data.checks, what: "check", height: 360, columns: [
    { title: "Check", value: (row) => row.name, width: "minmax(170px, 1.3fr)" },
    { title: "Output", value: (row) => row.output, width: "minmax(110px, 1fr)" },
    { title: "Shapes", value: (row) => row.shapes, width: "minmax(130px, 1.2fr)" },
    { title: "Off", value: (row) => row.max_error, show: (row) => errorSize(row.max_error), numeric: true, width: "110px" },
    { title: "Allowed", value: (row) => row.tolerance, show: (row) => errorSize(row.tolerance), numeric: true, width: "90px" },
    { title: "Used", value: used, show: (row) => barCell(used(row), row.passed ? "var(--good)" : "var(--bad)"), width: "110px", hint: "error as a share of what is allowed" },
    { title: "", value: (row) => row.passed, show: (row) => el("span", { class: row.passed ? "good" : "bad" }, row.passed ? "✓ passed" : "✗ failed"), width: "92px" },
  ] })));
}

function drawEnvironment() {
  const { summary, measured, roof } = data;
  const section = sectionHead("environment", "");
  const listed = (title, pairs) => el("div", { class: "box" }, el("h3", { style: { marginBottom: "8px" } }, title),
    pairs.length ? el("dl", { class: "pairs" }, pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])) : el("p", { class: "muted" }, "nothing recorded"));
  const dims = (port) => `[${(port.dims ?? ["?"]).map((dim) => dim ?? "?").join(",")}]`;
  section.append(el("div", { class: "two" },
    listed("Engine", [["model", data.title], ["target", summary.target], ["threads", count(summary.threads)], ["precision", summary.precision],
      ...summary.inputs.map((port) => [`input ${port.name}`, `${port.dtype}${dims(port)}${port.planned ? ` planned for [${port.planned.join(",")}]` : ""}`]),
      ...summary.parts.map((part) => [`tuned at ${part.tuned_at}`, `for ${part.takes}: profile ${part.profile}, part ${part.part}`]),
      ...summary.outputs.map((port) => [`output ${port.name}`, `${port.dtype}${dims(port)}`]),
      ...(data.hostValues ? [["shape arithmetic", `${plural(data.hostValues, "value")} known before work starts`]] : [])]),
    listed("Versions", Object.entries(summary.versions)),
    listed("Build by stage", Object.entries(summary.stage_seconds).filter(([, seconds]) => seconds >= 0.005).map(([name, seconds]) => [name, duration(seconds * 1e6)])),
    measured ? listed("Profile", [["device", measured.device], ["how", measured.how], ["rounds", count(measured.rounds)],
      ...Object.entries(measured.shapes).map(([name, shape]) => [`input ${name}`, shape])]) : null,
    roof ? listed("Ceilings", [["machine", roof.name], ["source", roof.source], ["memory", rate(roof.bytes_per_us, "B")], ...(roof.cache_bytes_per_us ? [["caches", rate(roof.cache_bytes_per_us, "B")]] : []),
      ...Object.entries(roof.flops_per_us).map(([kind, peak]) => [kind, rate(peak, "FLOP")]), ...(roof.launch_us ? [["launch", duration(roof.launch_us)]] : [])]) : null));
}
