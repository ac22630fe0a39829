// Maps of the model: a cell for every node in order; cells that run as one step stand together.

const FUSED = [["alone", 1, "--c-product"], ["2 or 3", 3, "--c-movement"], ["4 to 7", 7, "--c-convolution"], ["8 and more", Infinity, "--c-span"]];

function drawMaps() {
  const section = sectionHead("maps", "A cell for every node of the model, in the order of the graph. Neighbours of one shade were fused into one region; a click opens its step.");
  if (!data.regions.length) {
    section.append(el("div", { class: "box" }, empty("This plan has no regions.")));
    return;
  }
  const cells = data.regions.flatMap((region, i) => region.nodes.map((node) => ({ node, region, odd: i % 2 === 1 })));
  const fusedAs = (cell) => FUSED.find(([, most]) => cell.region.nodes.length <= most);
  const there = FUSED.filter((kind) => cells.some((cell) => fusedAs(cell) === kind));
  const swatch = (variable, name) => el("span", {}, el("span", { class: "dot", style: { background: `var(${variable})` } }), name);
  const alone = data.regions.filter((region) => region.nodes.length === 1).length;
  map(section, "fusion", "Fusion", `${plural(cells.length, "node")} in ${plural(data.regions.length, "region")}; ${plural(alone, "node")} alone.`, cells,
    (cell) => colour(fusedAs(cell)[2]), there.map(([name, , variable]) => swatch(variable, `${name} fused`.replace("alone fused", "alone"))));
  const kinds = precisions.filter((kind) => data.steps.some((step) => step.precision === kind));
  const spent = (kind) => data.steps.reduce((sum, step) => sum + (step.precision === kind ? step.us ?? 0 : 0), 0);
  map(section, "precision", "Precision", kinds.map((kind) => `${kind}: ${plural(data.steps.filter((step) => step.precision === kind).length, "step")}${totalUs ? `, ${percent(spent(kind) / totalUs)} of the time` : ""}`).join("; "), cells,
    (cell) => (cell.region.step ? precisionColour(stepAt(cell.region.step).precision) : colour("--faint")),
    [...kinds.map((kind) => el("span", {}, precisionDot(kind), kind)), cells.some((cell) => !cell.region.step) ? swatch("--faint", "known before work starts") : null]);
  const { lowered } = data.summary;
  if (lowered?.kept.length)
    section.append(el("div", { class: "box" }, el("h3", {}, "Kept in high precision"), dataTable({ rows: lowered.kept, wraps: true, what: "node", columns: [
      { title: "Node", value: (row) => row.node }, { title: "Why", value: (row) => row.why, width: "minmax(160px, 2fr)" }] })));
}

function map(section, name, title, about, cells, paint, legend) {
  const place = el("div", { class: "chart" });
  section.append(el("div", { class: "box" }, el("h3", {}, title), el("p", { class: "muted", style: { fontSize: "13px" } }, about), place, el("div", { class: "legend" }, legend)));
  const cell = cells.length <= 1200 ? 15 : cells.length <= 6000 ? 10 : 7;
  const columns = () => Math.max(8, Math.floor((place.clientWidth || 800) / cell));
  const fit = () => { place.style.height = `${Math.ceil(cells.length / columns()) * cell + 4}px`; };
  fit();
  drawChart(place, name, (chart) => {
    fit();
    chart.resize();
    const across = columns();
    return {
      tooltip: tooltip(({ data: { node, region } }) => tip(node, [["region", region.name], ["fused", plural(region.nodes.length, "node")],
        ["step", region.step ? String(region.step) : "known before work starts"],
        ...(region.step ? [["precision", stepAt(region.step).precision], ["tactic", stepAt(region.step).tactic]] : [])])),
      xAxis: { show: false, min: 0, max: 1 }, yAxis: { show: false, min: 0, max: 1 }, grid: { left: 0, right: 0, top: 0, bottom: 0 },
      series: [{ type: "custom", progressive: 0, renderItem: (params, api) => {
        const i = params.dataIndex;
        return { type: "rect", shape: { x: (i % across) * cell + 1, y: Math.floor(i / across) * cell + 1, width: cell - 2, height: cell - 2, r: 2 },
          style: { fill: api.visual("color"), opacity: cells[i].odd ? 0.66 : 1 } };
      }, data: cells.map((each) => ({ value: [0, 0], ...each, itemStyle: { color: paint(each) } })) }],
    };
  }, { onClick: ({ region }) => openRegion(region) });
}
