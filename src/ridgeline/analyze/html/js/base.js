// The data of the page, and how elements are made: everything a model names is written as text, never as HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const shared = (place) => data.texts[place];

// el("p", {class: "note", onclick: f}, "text", another): an element with attributes, handlers and children
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

const byId = (id) => document.getElementById(id);

// `draw` is called once, when the element comes near the window
function whenNear(element, draw) {
  const watch = new IntersectionObserver((seen) => {
    if (!seen.some((each) => each.isIntersecting)) return;
    watch.disconnect();
    draw();
  }, { rootMargin: "400px" });
  watch.observe(element);
}

// a section's head: title, one sentence about what is shown, and its tools
function sectionHead(id, about, ...tools) {
  const section = byId(id);
  section.append(el("div", { class: "head" },
    el("div", {}, el("h2", {}, section.dataset.title), about ? el("p", {}, about) : null),
    tools.length ? el("div", { class: "tools" }, tools) : null));
  return section;
}

// buttons of which one is pressed; `onPick` gets its key
function choice(label, options, picked, onPick) {
  const buttons = Object.entries(options).map(([key, title]) =>
    el("button", { class: "button", type: "button", "aria-pressed": String(key === picked), onclick: () => {
      for (const [each, button] of buttons) button.setAttribute("aria-pressed", String(each === key));
      onPick(key);
    } }, title)).map((button, i) => [Object.keys(options)[i], button]);
  return el("div", { class: "group", role: "group", "aria-label": label }, buttons.map(([, button]) => button));
}

// text in which `commands` stand between backquotes
const withCode = (text) => text.split("`").map((piece, i) => (i % 2 ? el("code", {}, piece) : piece));

const empty = (sentence, command) =>
  el("div", { class: "empty" }, sentence, command ? el("br") : null, command ? el("code", {}, command) : null);

const stepAt = (index) => data.steps[index - 1];
const regionsOf = new Map();
for (const region of data.regions) {
  if (!regionsOf.has(region.step)) regionsOf.set(region.step, []);
  regionsOf.get(region.step).push(region);
}
const areTimed = data.steps.some((step) => step.us !== null);
const totalUs = data.steps.reduce((sum, step) => sum + (step.us ?? 0), 0);
const bodies = new Map(Object.entries(data.bodies)); // a body may be called "constructor"
