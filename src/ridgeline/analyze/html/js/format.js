// Numbers as text with units: three significant digits, as the command line writes them.

const DASH = "–";
const three = (value) => (value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : value.toFixed(0));

function duration(us) {
  if (us === null || us === undefined) return DASH;
  if (us === 0) return "0 µs";
  return us < 1e3 ? `${three(us)} µs` : us < 1e6 ? `${three(us / 1e3)} ms` : `${three(us / 1e6)} s`;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return DASH;
  if (bytes < 1024) return `${bytes.toFixed(0)} B`;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    bytes /= 1024;
    if (bytes < 1000 || unit === "GiB") return `${three(bytes)} ${unit}`;
  }
}

function percent(part) {
  if (part === null || part === undefined) return DASH;
  if (part > 0 && part < 0.0005) return "< 0.1 %";
  return Math.abs(part) >= 0.1 || part === 0 ? `${(part * 100).toFixed(0)} %` : `${(part * 100).toFixed(1)} %`;
}

// 1.24 GFLOP; rates come per µs: rate(1200, "FLOP") is 1.20 GFLOP/s
function scaled(value, unit) {
  if (value === null || value === undefined) return DASH;
  if (value === 0) return `0 ${unit}`;
  for (const prefix of ["", "k", "M", "G", "T", "P"]) {
    if (value < 1000 || prefix === "P") return `${prefix === "" ? value.toFixed(value < 10 ? 1 : 0) : three(value)} ${prefix}${unit}`;
    value /= 1000;
  }
}
const rate = (perUs, unit) => (perUs === null || perUs === undefined ? DASH : `${scaled(perUs * 1e6, unit)}/s`);
const count = (value) => value.toLocaleString("en-US");
const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
const significant = (value) => (value === null || value === undefined ? DASH : Number(value.toPrecision(3)).toString());

function behind(part) {
  if (part === null || part === undefined) return DASH;
  if (Math.abs(part) < 0.005) return "0 %";
  return part < 1 ? `${part > 0 ? "+" : ""}${(part * 100).toFixed(0)} %` : `${three(part + 1)}×`;
}

function errorSize(value) {
  if (value === null || value === undefined) return "not a number";
  return value === 0 ? "0" : value.toExponential(1).replace("e+", "e");
}
// a scale of bytes in whole powers of two: about four lines, whatever the most is
function byteScale(most) {
  const interval = 2 ** Math.ceil(Math.log2(Math.max(most, 1) / 4));
  return { min: 0, max: Math.ceil(Math.max(most, 1) / interval) * interval, interval };
}
const achieved = (amount, us) => (us ? amount / us : null);
