// Memory: what is alive while each step runs, and where every value lies in the arena.

function drawMemory() {
  const { memory } = data;
  const peak = Math.max(0, ...memory.live);
  const saved = memory.unshared > memory.arena ? ` Sharing saves ${percent(1 - memory.arena / memory.unshared)} of ${size(memory.unshared)}.` : "";
  const section = sectionHead("memory", `One context needs an arena of ${size(memory.arena)}.${saved} Each block below is a value: its place in the arena, from the step that makes it to the last that reads it.`);
  const kinds = el("div", { class: "box" }, dataTable({ rows: data.summary.memory, wraps: true, filter: false, what: "kind", columns: [
    { title: "What", value: (row) => row.kind, width: "minmax(130px, 1fr)" }, { title: "Size", value: (row) => row.nbytes, show: (row) => size(row.nbytes), numeric: true, width: "110px" },
    { title: "Held by", value: (row) => (row.per_context ? "each context" : "the engine"), width: "120px" },
    { title: "", value: (row) => row.note, width: "minmax(120px, 2fr)" }] }));
  if (!memory.live.length && !memory.blocks.length) {
    section.append(kinds, el("div", { class: "box" }, empty("This plan says nothing of memory over time.")));
    return;
  }
  const place = el("div", { class: "chart" });
  section.append(el("div", { class: "box" }, place), kinds);
  const last = Math.max(data.steps.length, memory.live.length);
  const peakAt = memory.live.indexOf(peak);
  drawChart(place, "memory", () => ({
    grid: [{ left: 84, right: 20, top: 26, height: 120 }, { left: 84, right: 20, top: 178, height: 204 }],
    tooltip: tooltip((event) => (event.seriesIndex === 0
      ? tip(`Step ${event.dataIndex + 1}`, [["alive", size(event.data)], ["step", stepAt(event.dataIndex + 1)?.name ?? DASH]])
      : tip(event.data.block[0], [["type", event.data.block[1]], ["size", size(event.data.block[2])], ["at", size(event.data.block[3])],
        ["alive", `steps ${event.data.block[4] + 1} to ${event.data.block[5] + 1}`]]))),
    xAxis: [
      axis({ type: "category", gridIndex: 0, data: memory.live.map((_, i) => i + 1), axisLabel: { show: false }, splitLine: { show: false }, boundaryGap: true }),
      axis({ type: "value", gridIndex: 1, min: 0, max: last, axisLabel: { show: false }, splitLine: { show: false } }),
    ],
    yAxis: [
      axis({ type: "value", gridIndex: 0, name: "alive", nameLocation: "middle", nameGap: 66, ...byteScale(peak), axisLabel: { color: colour("--muted"), formatter: size } }),
      axis({ type: "value", gridIndex: 1, name: "place in the arena", nameLocation: "middle", nameGap: 66, ...byteScale(memory.arena), axisLabel: { color: colour("--muted"), formatter: size } }),
    ],
    dataZoom: zoom({ xAxisIndex: [0, 1] }),
    series: [
      { type: "line", step: "middle", xAxisIndex: 0, yAxisIndex: 0, data: memory.live, symbol: "none", triggerLineEvent: true, lineStyle: { color: colour("--accent"), width: 1.5 },
        areaStyle: { color: colour("--accent"), opacity: 0.18 },
        markPoint: peak ? { symbol: "circle", symbolSize: 8, itemStyle: { color: colour("--c-product") }, data: [{ coord: [peakAt, peak] }],
          label: { show: true, formatter: `peak ${size(peak)}, step ${peakAt + 1}`, position: "top", align: peakAt > memory.live.length / 2 ? "right" : "left", color: colour("--text") } } : undefined },
      { type: "custom", xAxisIndex: 1, yAxisIndex: 1, clip: true, encode: { x: [0, 1], y: [2, 3] }, renderItem: blockRect,
        data: memory.blocks.map((block, i) => ({ value: [block[4], block[5] + 1, block[3], block[3] + block[2]], block,
          itemStyle: { color: colour(BLOCKS[i % BLOCKS.length]), opacity: 0.62 } })) },
    ],
  }), { height: 420, onClick: (mark) => { if (mark.block) openStep(mark.block[4] + 1); } });
}

function blockRect(params, api) {
  const [x1, y1] = api.coord([api.value(0), api.value(2)]), [x2, y2] = api.coord([api.value(1), api.value(3)]);
  const box = params.coordSys;
  const shape = echarts.graphic.clipRectByRect({ x: x1, y: y2, width: Math.max(x2 - x1, 1), height: Math.max(y1 - y2, 1) }, { x: box.x, y: box.y, width: box.width, height: box.height });
  return shape && { type: "rect", shape, style: { fill: api.visual("color"), opacity: 0.62, stroke: colour("--surface"), lineWidth: x2 - x1 > 4 ? 1 : 0 } };
}
