// Asks the server how it is once a second. What it says is text: nothing of it becomes markup.

import { Chart } from "./chart.js";

const EVERY_MS = 1000, POINTS = 300, ASK = "v2/ridgeline/status";
const at = (id) => document.getElementById(id);
let key = "", timer = 0, lastAnswer = "";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function count(value) {
  if (!isNumber(value)) return "–";
  if (value >= 1e9) return `${(value / 1e9).toFixed(2)} G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return Number.isInteger(value) ? String(value) : value.toFixed(value < 10 ? 2 : 1);
}

function time(us) {
  if (!isNumber(us)) return "–";
  if (us >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
  if (us >= 1e3) return `${(us / 1e3).toFixed(us < 1e4 ? 2 : 1)} ms`;
  return `${us.toFixed(0)} µs`;
}

function span(seconds) {
  if (!isNumber(seconds)) return "–";
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = Math.max(0, parts.findIndex(([size]) => seconds >= size));
  return parts.slice(first, first + 2).map(([size, unit], i) => {
    const whole = Math.floor((i ? seconds % parts[first][0] : seconds) / size);
    return `${whole} ${unit}`;
  }).join(" ");
}

const share = (value) => (isNumber(value) ? `${(100 * value).toFixed(0)} %` : "–");
const gib = (bytes) => (isNumber(bytes) ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : "–");

const GOOD = ["READY", "ready", "serving"], WAITING = ["LOADING", "UNLOADING", "starting", "draining", "restarting"];
const mood = (state) => (GOOD.includes(state) ? "good" : WAITING.includes(state) ? "warn" : "bad");

function made(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

const pill = (state) => made("span", `pill ${mood(state)}`, state ?? "–");

function bars(sizes) {
  const pairs = (Array.isArray(sizes) ? sizes : []).filter((pair) => isNumber(pair?.[0]) && isNumber(pair?.[1]));
  if (!pairs.length) return document.createTextNode("–");
  const most = Math.max(...pairs.map(([, runs]) => runs));
  const place = made("span", "bars");
  for (const [size, runs] of pairs.slice(0, 64)) {
    const bar = made("i");
    bar.style.height = `${Math.max(4, (100 * runs) / most)}%`;
    bar.title = `${count(runs)} batches of ${size}`;
    place.append(bar);
  }
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", pairs.map(([size, runs]) => `${runs} of ${size}`).join(", "));
  return place;
}

// title, what to show, whether it is a number
const MODELS = [
  ["Model", (m) => m.name, false, "name"],
  ["Version", (m) => m.version || "–"],
  ["State", (m) => pill(m.state)],
  ["Requests/s", (m) => count(m.requests_per_s), true],
  ["Inferences/s", (m) => count(m.inferences_per_s), true],
  ["Median", (m) => time(m.p50_us), true],
  ["p95", (m) => time(m.p95_us), true],
  ["p99", (m) => time(m.p99_us), true],
  ["Waiting", (m) => count(m.queue_depth), true],
  ["Batch", (m) => count(m.average_batch), true],
  ["Batch sizes", (m) => bars(m.batch_sizes)],
  ["Requests", (m) => count(m.requests), true],
  ["Failed", (m) => count(m.failures), true],
];
const GPUS = [
  ["GPU", (g) => `${g.index ?? ""} ${g.name ?? ""}`.trim(), false, "name"],
  ["Busy", (g) => share(g.utilization), true],
  ["SM", (g) => share(g.sm_share), true],
  ["Tensor cores", (g) => share(g.tensor_share), true],
  ["Memory", (g) => `${gib(g.used_bytes)} of ${gib(g.memory_bytes)}`, true],
  ["Power", (g) => (isNumber(g.power_w) ? `${g.power_w.toFixed(0)} W` : "–"), true],
  ["Temperature", (g) => (isNumber(g.temperature_c) ? `${g.temperature_c} °C` : "–"), true],
];
const WORKERS = [
  ["Worker", (w) => w.device, false, "name"],
  ["State", (w) => pill(w.state)],
  ["Process", (w) => w.pid ?? "–", true],
  ["Restarts", (w) => count(w.restarts), true],
];

function table(place, columns, rows) {
  const head = made("tr");
  for (const [title, , isRight] of columns) head.append(made("th", isRight ? "number" : "", title));
  const body = made("tbody");
  for (const row of rows) {
    const line = made("tr");
    for (const [title, show, isRight, className] of columns) {
      const cell = made("td", className ?? (isRight ? "number" : ""));
      cell.dataset.label = title;
      cell.append(show(row));
      line.append(cell);
    }
    body.append(line);
    const why = row.reason || row.lost;
    if (why) {
      const cell = made("td", "reason", why);
      cell.colSpan = columns.length;
      body.append(made("tr", "why"));
      body.lastChild.append(cell);
    }
  }
  const top = made("thead");
  top.append(head);
  place.replaceChildren(top, body);
}

function optional(name, columns, rows) {
  at(`${name}-section`).hidden = !rows.length;
  table(at(name), columns, rows);
}

const throughput = new Chart(at("throughput"), ["inferences/s"], count, POINTS);
const latency = new Chart(at("latency"), ["median", "p95"], time, POINTS);

const list = (value) => (Array.isArray(value) ? value.filter((each) => each && typeof each === "object") : []);
const numbers = (rows, name) => rows.map((row) => row[name]).filter(isNumber);
const sum = (rows, name) => numbers(rows, name).reduce((total, value) => total + value, 0);
const most = (rows, name) => (numbers(rows, name).length ? Math.max(...numbers(rows, name)) : null);

function show(status) {
  const server = status.server ?? {}, models = list(status.models);
  at("server-name").textContent = server.name ?? "Ridgeline";
  at("server-line").textContent = `version ${server.version ?? "–"}, up for ${span(server.uptime_s)}`;
  at("server-state").textContent = server.state ?? "–";
  at("server-state").className = `pill ${mood(server.state)}`;
  const batches = sum(models, "executions");
  const cards = [
    ["Requests/s", count(sum(models, "requests_per_s"))],
    ["Inferences/s", count(sum(models, "inferences_per_s"))],
    ["p95, slowest model", time(most(models, "p95_us"))],
    ["Waiting", count(sum(models, "queue_depth"))],
    ["Average batch", count(batches ? sum(models, "inferences") / batches : null)],
    ["Failed", count(sum(models, "failures"))],
  ];
  at("cards").replaceChildren(...cards.map(([name, value]) => {
    const card = made("div", "card");
    card.append(made("div", "name", name), made("div", "value", value));
    return card;
  }));
  throughput.add([sum(models, "inferences_per_s")]);
  latency.add([most(models, "p50_us"), most(models, "p95_us")]);
  table(at("models"), MODELS, models);
  optional("gpus", GPUS, list(status.gpus));
  optional("workers", WORKERS, list(status.workers));
}

function tell(problem) {
  at("problem").hidden = !problem;
  at("problem").textContent = problem;
  if (problem) {
    at("server-state").textContent = "no answer";
    at("server-state").className = "pill bad";
  }
}

async function look() {
  try {
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    const answer = await fetch(ASK, { headers, cache: "no-store" });
    at("key-form").hidden = answer.status !== 401;
    if (!answer.ok) throw new Error(`the server answered with status ${answer.status}`);
    show(await answer.json());
    lastAnswer = new Date().toLocaleTimeString();
    tell("");
  } catch (error) {
    tell(`${error.message}${lastAnswer ? `; what is shown is of ${lastAnswer}` : ""}`);
  }
}

async function run() {
  clearTimeout(timer);
  // nobody looks at a hidden page
  if (!document.hidden) await look();
  clearTimeout(timer);
  timer = setTimeout(run, EVERY_MS);
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  run();
});
document.addEventListener("visibilitychange", run);
run();
