// Light or dark: the system's choice until the reader makes one. Charts ask here for their colours.

const CLASSES = {
  convolution: ["--c-convolution", "circle"], product: ["--c-product", "rect"], attention: ["--c-attention", "diamond"],
  "norm/reduction": ["--c-norm", "triangle"], pointwise: ["--c-pointwise", "roundRect"],
  movement: ["--c-movement", "pin"], "library span": ["--c-span", "circle"], recurrent: ["--c-recurrent", "diamond"],
  control: ["--c-control", "arrow"], other: ["--c-other", "circle"],
};
// the same colour for a type on every page
const PRECISIONS = {
  float32: "--c-convolution", tf32: "--c-movement", float16: "--c-pointwise", bfloat16: "--c-norm", int8: "--c-attention", uint8: "--c-attention",
  float8_e4m3fn: "--c-product", float8_e5m2: "--c-product", int4: "--c-span", uint4: "--c-span", float4_e2m1fn: "--c-control", float64: "--c-recurrent",
};
const precisionVariable = (kind) => (Object.hasOwn(PRECISIONS, kind) ? PRECISIONS[kind] : "--c-other");
const BLOCKS = ["--c-convolution", "--c-pointwise", "--c-norm", "--c-attention", "--c-product", "--c-movement"];
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
const precisionColour = (kind) => colour(precisionVariable(kind));

byId("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("ridgeline-theme", theme); } catch { /* a private window: only for now */ }
  applyTheme(theme);
});
systemDark.addEventListener("change", () => applyTheme(stored()));
applyTheme(stored());

const dot = (kind) => el("span", { class: "dot", style: { background: `var(${(CLASSES[kind] ?? CLASSES.other)[0]})` } });
const precisionDot = (kind) =>
  el("span", { class: "dot", style: { background: `var(${precisionVariable(kind)})` } });
