// The fused graph on a canvas: laid out in a worker when it is first looked at, searched, zoomed, clicked.

const AT_ONCE = 120; // nodes that are laid out together: dagre recurses along chains, thousands of nodes overflow its stack
const LABEL = 26;

const graphView = { cy: null, ready: null, show: () => {} };

function drawGraph() {
  const section = sectionHead("graph", "Every region of the fused model; a frame holds regions that one step runs together, dotted ones are shape arithmetic that is done before the run. Click a region for what it computes and who competed for it.");
  if (!data.regions.length || !data.regions.some((region) => region.inputs.length || region.outputs.length)) {
    section.append(el("div", { class: "box" }, empty("The graph of this engine was not read.")));
    return;
  }
  let paint = "kind";
  const search = el("input", { type: "search", id: "graph-search", placeholder: "Find a node, an op, a value", "aria-label": "Find in the graph" });
  const found = el("span", { class: "count", id: "graph-found", "aria-live": "polite" });
  const button = (label, act, title) => el("button", { class: "button", type: "button", onclick: act, "aria-label": title, title }, label);
  const canvas = el("div", { id: "canvas", role: "img", "aria-label": `Graph of ${plural(data.regions.length, "region")}` });
  const state = el("div", { class: "graph-state" }, "The layout is being computed …");
  section.append(el("div", { class: "box" },
    el("div", { class: "filter" }, search, found, el("span", { style: { flex: "1" } }),
      choice("Colour by", { kind: "Kind", precision: "Precision", time: "Time" }, paint, (key) => { paint = key; restyle(); }),
      el("div", { class: "group" }, button("−", () => zoomBy(1 / 1.4), "Zoom out"), button("+", () => zoomBy(1.4), "Zoom in"), button("Fit", () => graphView.cy?.fit(undefined, 24), "Show all of it"))),
    el("div", { class: "graph-wrap" }, canvas, state), legendOf(regionKinds)));

  const zoomBy = (factor) => {
    const { cy } = graphView;
    if (cy) cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });
  };
  const restyle = () => graphView.cy?.style(graphStyle(paint));
  drawings.push(restyle);
  let starting = null;
  const start = () => (starting ??= layOut().then((places) => {
    state.remove();
    graphView.cy = makeGraph(canvas, places, graphStyle(paint));
    graphView.ready = true;
  }, (problem) => { state.textContent = `The graph could not be laid out: ${problem.message}`; }));
  whenNear(canvas, start);

  let hits = [], at = -1;
  const goTo = (i) => {
    at = (i + hits.length) % hits.length;
    found.textContent = `${count(at + 1)} of ${count(hits.length)}`;
    focusOn(hits[at]);
  };
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().trim();
    hits = words ? regionIds.filter((id) => textOfRegion(id).includes(words)) : [];
    at = -1;
    found.textContent = !words ? "" : hits.length ? plural(hits.length, "region") : "nothing found";
    start().then(() => {
      graphView.cy.batch(() => {
        graphView.cy.nodes().removeClass("hit");
        for (const id of hits) graphView.cy.getElementById(id).addClass("hit");
      });
      if (hits.length) goTo(0);
    });
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !hits.length) return;
    event.preventDefault();
    goTo(at + (event.shiftKey ? -1 : 1));
  });
  graphView.show = (region) => {
    byId("graph").scrollIntoView();
    start().then(() => focusOn(idOf.get(region)));
  };
}

const idOf = new Map(data.regions.map((region, i) => [region, `r${i}`]));
const regionIds = [...idOf.values()];
const regionOf = (id) => data.regions[Number(id.slice(1))];
const searched = new Map();
function textOfRegion(id) {
  if (!searched.has(id)) {
    const region = regionOf(id);
    searched.set(id, [region.name, ...region.nodes, ...region.ops.map(shared), ...region.inputs, ...region.outputs,
      region.step ? stepAt(region.step).tactic : ""].join(" ").toLowerCase());
  }
  return searched.get(id);
}

function focusOn(id) {
  const { cy } = graphView;
  const node = cy.getElementById(id);
  cy.elements().unselect();
  node.select();
  cy.zoom(Math.max(cy.zoom(), 0.9));
  cy.center(node);
}

function labelOf(region) {
  const ops = region.ops.map(shared);
  const text = ops.length <= 3 ? ops.join(" ") : `${ops.slice(0, 2).join(" ")} +${ops.length - 2}`;
  return text.length > LABEL ? `${text.slice(0, LABEL - 1)}…` : text;
}

// nodes with their sizes, and an edge for every value that one makes and another reads
function graphParts() {
  const makers = new Map();
  const nodes = [];
  const frames = new Set();
  const addPort = (id, name, kind) => nodes.push({ id, label: name.length > LABEL ? `…${name.slice(1 - LABEL)}` : name, kind, width: 40 + 7 * Math.min(name.length, LABEL), height: 26 });
  data.graphInputs.forEach((name, i) => { makers.set(name, `i${i}`); addPort(`i${i}`, name, "port"); });
  for (const region of data.regions) {
    const id = idOf.get(region);
    for (const name of region.outputs) makers.set(name, id);
    const step = region.step ? stepAt(region.step) : null;
    const isShared = step && (regionsOf.get(region.step) ?? []).length > 1;
    const time = step && !isShared && step.us !== null ? duration(step.us) : "";
    const first = labelOf(region);
    if (isShared) frames.add(region.step);
    nodes.push({ id, label: time ? `${first}\n${time}` : first, kind: step ? region.kind : "host", precision: step?.precision ?? "", share: step && !isShared ? step.share ?? 0 : 0,
      step: region.step, parent: isShared ? `s${region.step}` : undefined, width: Math.max(74, 22 + 7.1 * Math.max(first.length, time.length)), height: time ? 42 : 28 });
  }
  const edges = new Map();
  const connect = (from, to) => { if (from && from !== to) edges.set(`${from}>${to}`, { from, to }); };
  for (const region of data.regions) for (const name of region.inputs) connect(makers.get(name), idOf.get(region));
  data.graphOutputs.forEach((name, i) => { addPort(`o${i}`, name, "port"); connect(makers.get(name), `o${i}`); });
  return { nodes, edges: [...edges.values()], frames: [...frames] };
}

// runs in a worker; only what it is given is known here. Nodes come in the order of the graph: a large one is laid
// out piece by piece, each below the one before it. A frame lies in one piece
function place(dagre, { nodes, edges, atOnce }) {
  const gap = 34;
  const pieceOf = new Map(), firstOf = new Map();
  nodes.forEach(({ id, parent }, i) => {
    const own = Math.floor(i / atOnce);
    if (parent && !firstOf.has(parent)) firstOf.set(parent, own);
    pieceOf.set(id, parent ? firstOf.get(parent) : own);
  });
  const places = {}, bends = edges.map(() => []);
  let top = 0;
  for (let piece = 0; piece * atOnce < nodes.length; piece++) {
    const own = nodes.filter(({ id }) => pieceOf.get(id) === piece);
    const frames = new Set(own.map(({ parent }) => parent).filter(Boolean));
    const graph = new dagre.graphlib.Graph({ compound: frames.size > 0 });
    graph.setGraph({ rankdir: "TB", nodesep: 26, ranksep: gap, edgesep: 12 });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const frame of frames) graph.setNode(frame, {});
    for (const { id, width, height, parent } of own) {
      graph.setNode(id, { width, height });
      if (parent) graph.setParent(id, parent);
    }
    const inside = edges.map((edge, i) => [edge, i]).filter(([{ from, to }]) => pieceOf.get(from) === piece && pieceOf.get(to) === piece);
    for (const [{ from, to }] of inside) graph.setEdge(from, to);
    dagre.layout(graph);
    const { width, height } = graph.graph();
    const moved = ({ x, y }) => ({ x: x - width / 2, y: y + top });
    for (const { id } of own) places[id] = moved(graph.node(id));
    for (const [{ from, to }, i] of inside) bends[i] = graph.edge(from, to).points.slice(1, -1).map(moved);
    top += height + gap;
  }
  return { places, bends };
}

function layOut() {
  const parts = graphParts();
  const asked = { nodes: parts.nodes.map(({ id, width, height, parent }) => ({ id, width, height, parent })), edges: parts.edges, atOnce: AT_ONCE };
  const text = `${byId("library-dagre").textContent}\n${place}\nonmessage = (event) => postMessage(place(dagre, event.data));`;
  return new Promise((resolve, reject) => {
    const here = () => { try { resolve({ ...parts, ...place(dagre, asked) }); } catch (problem) { reject(problem); } };
    let worker;
    try {
      worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
    } catch {
      here(); // a browser that allows no worker from a file
      return;
    }
    worker.onmessage = (event) => { resolve({ ...parts, ...event.data }); worker.terminate(); };
    worker.onerror = (event) => { event.preventDefault(); worker.terminate(); here(); };
    worker.postMessage(asked);
  });
}

// where a line bends: as shares of the way from its start to its end, and distances from the straight line
function bendsOf(from, to, points) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy);
  const along = points.map(({ x, y }) => ((x - from.x) * dx + (y - from.y) * dy) / length ** 2);
  const beside = points.map(({ x, y }) => ((y - from.y) * dx - (x - from.x) * dy) / length);
  return beside.some((distance) => Math.abs(distance) > 4) ? { weights: along.join(" "), distances: beside.join(" ") } : {};
}

function makeGraph(container, { nodes, edges, frames, places, bends }, style) {
  const large = nodes.length > 400;
  const cy = cytoscape({
    container, style, layout: { name: "preset" }, minZoom: 0.01, maxZoom: 2.5, boxSelectionEnabled: false, autoungrabify: true,
    textureOnViewport: large, hideEdgesOnViewport: nodes.length > 3000, pixelRatio: large ? 1 : "auto",
    elements: [
      ...frames.map((step) => ({ group: "nodes", data: { id: `s${step}`, label: `step ${step}, ${stepAt(step).tactic}, ${duration(stepAt(step).us)}`, step }, classes: "frame" })),
      ...nodes.map((node) => ({ group: "nodes", data: node, position: places[node.id], classes: node.kind === "port" ? "port" : node.kind === "host" ? "region host" : "region" })),
      ...edges.map(({ from, to }, i) => ({ group: "edges", data: { source: from, target: to, ...bendsOf(places[from], places[to], bends[i]) } })),
    ],
  });
  if (nodes.length <= 24) cy.fit(undefined, 24);
  else {
    const first = cy.nodes(":childless").min((node) => node.position("y")).ele;
    cy.zoom(0.85);
    cy.pan({ x: cy.width() / 2 - first.position("x") * 0.85, y: 46 - first.position("y") * 0.85 });
  }
  cy.on("tap", "node.region", (event) => openRegion(regionOf(event.target.id())));
  cy.on("tap", "node.frame", (event) => openStep(event.target.data("step")));
  return cy;
}

function graphStyle(paint) {
  const hottest = Math.max(1e-9, ...data.steps.map((step) => step.share ?? 0));
  const fill = (node) => (paint === "precision" && node.data("precision") ? precisionColour(node.data("precision")) : paint === "time" ? colour("--c-product") : classColour(node.data("kind")));
  const strength = (node) => (paint === "time" ? 0.04 + 0.8 * Math.sqrt(node.data("share") / hottest) : 0.2);
  return [
    { selector: "node[width]", style: { width: "data(width)", height: "data(height)" } },
    { selector: "node", style: { shape: "round-rectangle", label: "data(label)", "text-wrap": "wrap", "text-valign": "center", "text-halign": "center",
      "font-size": 12, "font-family": getComputedStyle(document.body).fontFamily, color: colour("--text"), "min-zoomed-font-size": 6, "line-height": 1.25 } },
    { selector: "node.region", style: { "background-color": fill, "background-opacity": strength, "border-color": fill, "border-width": 1.6 } },
    { selector: "node.host", style: { "background-color": colour("--surface"), "border-color": colour("--faint"), "border-style": "dotted", color: colour("--muted") } },
    { selector: "node.port", style: { "background-color": colour("--raised"), "border-color": colour("--faint"), "border-width": 1, "border-style": "dashed" } },
    { selector: "node.frame", style: { "background-color": colour("--raised"), "background-opacity": 0.55, "border-color": colour("--faint"), "border-width": 1, "text-valign": "top", "font-size": 13, color: colour("--muted"), "text-background-color": colour("--bg"), "text-background-opacity": 0.85, "text-background-padding": 2, padding: 18 } },
    { selector: "node.hit", style: { "border-width": 3.5, "border-color": colour("--accent") } },
    { selector: "node:selected", style: { "border-width": 4, "border-color": colour("--accent"), "background-opacity": 0.45 } },
    { selector: "edge", style: { width: 1.3, "line-color": colour("--faint"), "target-arrow-color": colour("--faint"), "target-arrow-shape": "triangle", "arrow-scale": 0.75, "curve-style": "straight" } },
    { selector: "edge[weights]", style: { "curve-style": "round-segments", "edge-distances": "node-position", "segment-weights": "data(weights)", "segment-distances": "data(distances)", "segment-radii": 14 } },
  ];
}
