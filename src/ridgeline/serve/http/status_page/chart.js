// Lines over the last minutes as SVG. Values that are not known leave a gap.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600, HEIGHT = 150, TOP = 6, FEWEST = 60;

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// the next of 1, 2, 5, 10, 20, … so that the scale does not move with every value
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999999);
}

export class Chart {
  // `names` has one entry for each line, `format` makes a value readable
  constructor(place, names, format, points) {
    this.names = names;
    this.format = format;
    this.points = points;
    this.history = [];
    this.svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    for (const y of [TOP, (HEIGHT + TOP) / 2, HEIGHT - 1]) {
      this.svg.append(element("line", { x1: 0, x2: WIDTH, y1: y, y2: y }));
    }
    const kinds = ["first", "second"];
    this.paths = names.map((_, i) => element("path", { class: kinds[i], d: "" }));
    this.svg.append(...this.paths);
    const legend = document.createElement("div");
    legend.className = "legend";
    this.labels = names.map((_, i) => Object.assign(document.createElement("span"), { className: kinds[i] }));
    this.scale = Object.assign(document.createElement("span"), { className: "muted" });
    legend.append(...this.labels, this.scale);
    place.replaceChildren(this.svg, legend);
  }

  add(values) {
    this.history.push(values);
    if (this.history.length > this.points) this.history.shift();
    const known = this.history.flat().filter(Number.isFinite);
    const top = roundUp(Math.max(...known, 1e-9));
    const step = WIDTH / (Math.max(FEWEST, this.history.length) - 1);
    const start = WIDTH - (this.history.length - 1) * step;
    this.paths.forEach((path, line) => {
      let drawn = "", isDown = false;
      this.history.forEach((each, i) => {
        const value = each[line];
        if (Number.isFinite(value)) {
          const y = HEIGHT - 1 - (value / top) * (HEIGHT - 1 - TOP);
          drawn += `${isDown ? "L" : "M"}${(start + i * step).toFixed(1)} ${y.toFixed(1)}`;
        }
        isDown = Number.isFinite(value);
      });
      path.setAttribute("d", drawn);
      this.labels[line].textContent = `${this.names[line]} ${this.format(values[line])}`;
    });
    this.scale.textContent = `scale to ${this.format(top)}`;
    this.svg.setAttribute("aria-label", this.labels.map((label) => label.textContent).join(", "));
  }
}
