// Tables that sort and filter. Those of one line a row draw only the rows in view; those that wrap show some at a time.

const ROW = 33;
const MORE = 60;

// columns: {title, value(row) to sort by, show(row) text or element, width for the grid, numeric, hint}
function dataTable({ columns, rows, onRow = null, height = 430, wraps = false, sort = null, filter = true, what = "row" }) {
  let order = sort, words = "", shown = rows, limit = MORE;
  const widthOf = (column) => column.width ?? "minmax(90px, 1fr)";
  const widths = columns.map(widthOf).join(" ");
  // every row has the same width, so that columns stay under one another: what does not fit scrolls
  const least = columns.reduce((sum, column) => sum + Number(widthOf(column).match(/[0-9]+/)[0]), 0);
  const texts = new Map();
  const textOf = (row) => {
    if (!texts.has(row)) texts.set(row, columns.map((column) => plain(column, row)).join(" ").toLowerCase());
    return texts.get(row);
  };
  const counted = el("span", { class: "count", "aria-live": "polite" });
  const search = el("input", { type: "search", placeholder: `Filter ${what}s`, "aria-label": `Filter ${what}s`, oninput: () => {
    words = search.value.toLowerCase().trim();
    limit = MORE;
    update();
  } });
  const header = el("div", { class: "row header", role: "row", style: { gridTemplateColumns: widths, minWidth: `${least}px` } },
    columns.map((column, i) => el("div", { role: "columnheader", class: column.numeric ? "number" : null, title: column.hint },
      el("button", { type: "button", onclick: () => sortBy(i) }, column.title))));
  const body = el("div", { class: "body", role: "rowgroup" });
  const frame = el("div", { class: `table ${wraps ? "wraps" : "fixed"}`, role: "table", tabindex: "0", "aria-rowcount": rows.length },
    header, body);
  if (!wraps) frame.style.maxHeight = `${height}px`;
  const more = el("button", { class: "button", type: "button", onclick: () => { limit += 4 * MORE; draw(); } });

  function sortBy(i) {
    order = order && order[0] === i ? [i, -order[1]] : [i, columns[i].numeric ? -1 : 1];
    update();
  }
  function update() {
    shown = words ? rows.filter((row) => words.split(/\s+/).every((word) => textOf(row).includes(word))) : rows.slice();
    if (order) {
      const [i, way] = order;
      const value = columns[i].value;
      // rows without a value come last, whichever way
      shown.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === y) return 0;
        if (x === null || x === undefined) return 1;
        if (y === null || y === undefined) return -1;
        return (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y) * way;
      });
    }
    [...header.children].forEach((cell, i) => {
      const way = order && order[0] === i ? order[1] : 0;
      cell.setAttribute("aria-sort", way === 0 ? "none" : way > 0 ? "ascending" : "descending");
      cell.firstChild.textContent = columns[i].title + (way === 0 ? "" : way > 0 ? " ↑" : " ↓");
    });
    counted.textContent = shown.length === rows.length ? plural(rows.length, what) : `${count(shown.length)} of ${plural(rows.length, what)}`;
    frame.scrollTop = 0;
    draw();
  }
  function draw() {
    if (wraps) {
      body.replaceChildren(...shown.slice(0, limit).map((row) => line(row, null)));
      more.hidden = shown.length <= limit;
      more.textContent = `Show ${count(Math.min(4 * MORE, shown.length - limit))} more`;
    } else {
      const first = Math.max(0, Math.floor(frame.scrollTop / ROW) - 8);
      const last = Math.min(shown.length, Math.ceil((frame.scrollTop + height) / ROW) + 8);
      body.style.height = `${shown.length * ROW}px`;
      body.replaceChildren(...shown.slice(first, last).map((row, i) => line(row, first + i)));
    }
    if (!shown.length) body.replaceChildren(empty(words ? `Nothing matches “${words}”.` : "Nothing here."));
  }
  function line(row, place) {
    const open = onRow ? () => onRow(row) : null;
    return el("div", {
      class: `row${open ? " clickable" : ""}`, role: "row", tabindex: open ? "0" : null, onclick: open ?? undefined,
      onkeydown: open ? (event) => { if (event.key === "Enter") open(); } : undefined,
      style: { gridTemplateColumns: widths, minWidth: `${least}px`, ...(place === null ? {} : { top: `${place * ROW}px` }) },
    }, columns.map((column) => {
      const content = column.show ? column.show(row) : column.value(row);
      const title = wraps || typeof content !== "string" ? null : content;
      return el("div", { role: "cell", class: column.numeric ? "number" : null, title }, content ?? DASH);
    }));
  }
  let pending = false;
  frame.addEventListener("scroll", () => {
    if (wraps || pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); });
  });
  update();
  return el("div", {}, filter && rows.length > 6 ? el("div", { class: "filter" }, search, counted) : null, frame, wraps ? more : null);
}

function plain(column, row) {
  const content = column.show ? column.show(row) : column.value(row);
  return content instanceof Node ? content.textContent : String(content ?? "");
}

const barCell = (share, fill) => el("span", { class: "bar" }, el("i", { style: { width: `${Math.min(100, (share ?? 0) * 100)}%`, background: fill } }));
