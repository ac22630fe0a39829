// Light or dark: the system's choice until the reader makes one. Charts ask here for their colours.

const CLASSES = {
  convolution: ["--c-convolution", "circle"], product: ["--c-product", "rect"], attention: ["--c-attention", "diamond"],
  "norm/reduction": ["--c-norm", "triangle"], pointwise: ["--c-pointwise", "roundRect"],
  movement: ["--c-movement", "pin"], "library span": ["--c-span", "circle"], recurrent: ["--c-recurrent", "diamond"],
  control: ["--c-control", "arrow"], other: ["--c-other", "circle"],
};
const PRECISIONS = ["--c-convolution", "--c-pointwise", "--c-norm", "--c-attention", "--c-product", "--c-movement", "--c-recurrent", "--c-other"];
const precisions = [...new Set(data.steps.map((step) => step.precision))].sort();

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const drawings = []; // called again when colours change

function stored() {
  try { return localStorage.getItem("ridgeline-theme"); } catch { return null; }
}
const isDark = () => document.documentElement.dataset.theme === "dark";

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme ?? (systemDark.matches ? "dark" : "light");
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  colours.clear();
  for (const draw of drawings) draw();
}

const colours = new Map();
function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colours.get(name);
}
const classColour = (kind) => colour((CLASSES[kind] ?? CLASSES.other)[0]);
const precisionColour = (kind) => colour(PRECISIONS[precisions.indexOf(kind) % PRECISIONS.length]);

byId("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("ridgeline-theme", theme); } catch { /* a private window: only for now */ }
  applyTheme(theme);
});
systemDark.addEventListener("change", () => applyTheme(stored()));
applyTheme(stored());

const dot = (kind) => el("span", { class: "dot", style: { background: `var(${(CLASSES[kind] ?? CLASSES.other)[0]})` } });
const precisionDot = (kind) =>
  el("span", { class: "dot", style: { background: `var(${PRECISIONS[precisions.indexOf(kind) % PRECISIONS.length]})` } });
