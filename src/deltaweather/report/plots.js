"use strict";
// A few plots in SVG. Each takes an element and plain numbers, and draws afresh.
const SVG = "http://www.w3.org/2000/svg";
const tip = document.getElementById("tip");

function make(name, attributes, text, parent) {
  const node = document.createElementNS(SVG, name);
  for (const [k, v] of Object.entries(attributes || {})) node.setAttribute(k, v);
  if (text !== undefined && text !== null) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}
function hint(node, text) {
  node.addEventListener("mousemove", e => {
    tip.textContent = text; tip.style.display = "block";
    tip.style.left = Math.min(e.clientX + 14, innerWidth - 310) + "px"; tip.style.top = e.clientY + 14 + "px";
  });
  node.addEventListener("mouseleave", () => { tip.style.display = "none"; });
}
const show = (x, digits = 3) => x === null || x === undefined ? "–" :
  Math.abs(x) >= 1e4 || (x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(1) : String(+x.toPrecision(digits));
const signed = x => (x >= 0 ? "+" : "−") + Math.abs(x).toFixed(3);

function ticks(low, high, count = 5) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => s >= raw) || raw, found = [];
  for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k++) found.push(+(k * step).toPrecision(10));
  return found;
}
function extent(values, pad = 0.06) {
  const known = values.filter(v => v !== null && isFinite(v));
  let low = Math.min(...known), high = Math.max(...known);
  if (!known.length) return [0, 1];
  if (low === high) { low -= 0.5; high += 0.5; }
  return [low - pad * (high - low), high + pad * (high - low)];
}
// Axes; returns the drawing and the two scales. `logX` for powers of ten.
function frame(host, o) {
  const width = o.width || 1000, height = o.height || 320, left = o.left || 58, right = o.right || 14, top = 10, bottom = o.bottom || 42;
  host.replaceChildren();
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": o.label || "" }, null, host);
  const tx = o.logX ? Math.log10 : v => v;
  const x = v => left + (tx(v) - tx(o.x[0])) / (tx(o.x[1]) - tx(o.x[0])) * (width - left - right);
  const y = v => height - bottom - (v - o.y[0]) / (o.y[1] - o.y[0]) * (height - top - bottom);
  const xs = o.xTicks || (o.logX ? logTicks(o.x) : ticks(...o.x));
  for (const t of xs) {
    make("line", { x1: x(t), x2: x(t), y1: top, y2: height - bottom, class: "axis" }, null, svg);
    make("text", { x: x(t), y: height - bottom + 16, "text-anchor": "middle", class: "dim" }, o.xText ? o.xText(t) : show(t), svg);
  }
  if (o.yTicks !== null) for (const t of ticks(...o.y)) {
    make("line", { x1: left, x2: width - right, y1: y(t), y2: y(t), class: "axis" }, null, svg);
    make("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end", class: "dim" }, show(t), svg);
  }
  make("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle", class: "dim" }, o.xLabel || "", svg);
  if (o.yLabel) make("text", { x: 12, y: top + (height - top - bottom) / 2, "text-anchor": "middle", class: "dim",
    transform: `rotate(-90 12 ${top + (height - top - bottom) / 2})` }, o.yLabel, svg);
  if (o.y[0] < 0 && o.y[1] > 0 && o.yTicks !== null) make("line", { x1: left, x2: width - right, y1: y(0), y2: y(0), class: "zero" }, null, svg);
  return { svg, x, y, width, height, left, right, top, bottom };
}
function logTicks([low, high]) {
  const found = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
    for (const m of [1, 2, 5]) { const t = m * 10 ** p; if (t >= low && t <= high) found.push(t); }
  return found;
}
// lines: [{name, colour, dash, points: [[x, y, error?]]}]
function linePlot(host, lines, o) {
  const known = lines.flatMap(l => l.points);
  const f = frame(host, { ...o, x: o.x || extent(known.map(p => p[0]), 0.03), y: o.y || extent(known.flatMap(p => [p[1] - (p[2] || 0), p[1] + (p[2] || 0)]).concat(o.zero ? [0] : [])) });
  for (const l of lines) {
    const points = l.points.filter(p => p[1] !== null);
    make("path", { d: points.map((p, k) => (k ? "L" : "M") + f.x(p[0]).toFixed(1) + " " + f.y(p[1]).toFixed(1)).join(""),
      fill: "none", stroke: l.colour, "stroke-width": l.width || 2, "stroke-dasharray": l.dash || "none" }, null, f.svg);
    for (const p of points) {
      if (p[2]) make("line", { x1: f.x(p[0]), x2: f.x(p[0]), y1: f.y(p[1] - p[2]), y2: f.y(p[1] + p[2]), stroke: l.colour, "stroke-width": 1 }, null, f.svg);
      hint(make("circle", { cx: f.x(p[0]), cy: f.y(p[1]), r: 4, fill: l.colour }, null, f.svg),
        `${l.name}\n${o.xLabel}: ${show(p[0])}\n${o.yLabel || "value"}: ${show(p[1])}${p[2] ? " ± " + show(p[2] / 2) : ""}`);
    }
  }
  const legend = document.createElement("div"); legend.className = "legend";
  for (const l of lines) { const s = document.createElement("span"), i = document.createElement("i");
    i.style.borderColor = l.colour; if (l.dash) i.style.borderTopStyle = "dashed"; s.append(i, l.name); legend.append(s); }
  host.append(legend);
  return f;
}
// rows: [{name, colour, value, error}] as dots with bars of two errors, zero marked
function dotPlot(host, rows, title, names) {
  const line = 21, height = rows.length * line + 62, left = names ? 168 : 14;
  const f = frame(host, { width: names ? 460 : 310, height, left, x: extent(rows.flatMap(r => [r.value - 2 * r.error, r.value + 2 * r.error, 0])), y: [0, 1], yTicks: null, bottom: 42, xLabel: title, label: title });
  make("line", { x1: f.x(0), x2: f.x(0), y1: 4, y2: height - 42, class: "zero" }, null, f.svg);
  rows.forEach((r, k) => {
    const at = 18 + k * line;
    if (names) make("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, r.name, f.svg);
    make("line", { x1: f.x(r.value - 2 * r.error), x2: f.x(r.value + 2 * r.error), y1: at, y2: at, stroke: r.colour, "stroke-width": 2 }, null, f.svg);
    hint(make("circle", { cx: f.x(r.value), cy: at, r: 5, fill: r.colour }, null, f.svg), `${r.name}\n${title}: ${signed(r.value)} ± ${r.error.toFixed(3)}`);
  });
}
function scatterPlot(host, points, o) {
  const f = frame(host, { ...o, x: [Math.min(...points.map(p => p.x)) / 1.5, Math.max(...points.map(p => p.x)) * 2.2], logX: true, y: extent(points.flatMap(p => [p.y - 2 * p.error, p.y + 2 * p.error, 0])) });
  const taken = [];
  for (const p of [...points].sort((a, b) => b.y - a.y)) {
    const cx = f.x(p.x), cy = f.y(p.y);
    make("line", { x1: cx, x2: cx, y1: f.y(p.y - 2 * p.error), y2: f.y(p.y + 2 * p.error), stroke: p.colour }, null, f.svg);
    hint(make("circle", { cx, cy, r: 6, fill: p.colour }, null, f.svg), `${p.name}\n${o.yLabel}: ${signed(p.y)} ± ${p.error.toFixed(3)}\n${show(p.x)} forward rollouts a start`);
    let at = cy + 4;
    while (taken.some(t => Math.abs(t[0] - cx) < 170 && Math.abs(t[1] - at) < 13)) at += 13;
    taken.push([cx, at]);
    make("text", { x: cx + 10, y: at, class: "dim" }, p.name, f.svg);
  }
}
function bandPlot(host, times, middle, own, all, target, o) {
  const n = middle.length, index = [...Array(n).keys()];
  const f = frame(host, { ...o, height: 360, x: [-0.5, n - 0.5], y: extent([...middle.map((m, k) => m - 2 * all[k]), ...middle.map((m, k) => m + 2 * all[k]), ...target], 0.02),
    xTicks: index.filter(k => k % Math.ceil(n / 8) === 0), xText: k => times[k], xLabel: "start of the forecast" });
  const area = s => index.map(k => (k ? "L" : "M") + f.x(k) + " " + f.y(middle[k] + 2 * s[k])).join("") +
    index.map(k => "L" + f.x(n - 1 - k) + " " + f.y(middle[n - 1 - k] - 2 * s[n - 1 - k])).join("") + "Z";
  make("path", { d: area(all), fill: "var(--band)", opacity: 0.16 }, null, f.svg);
  make("path", { d: area(own), fill: "var(--band)", opacity: 0.4 }, null, f.svg);
  make("path", { d: index.map(k => (k ? "L" : "M") + f.x(k) + " " + f.y(middle[k])).join(""), fill: "none", stroke: "var(--band)", "stroke-width": 2 }, null, f.svg);
  index.forEach(k => hint(make("circle", { cx: f.x(k), cy: f.y(target[k]), r: 3.6, fill: "var(--delta)" }, null, f.svg),
    `from ${times[k]}\nforecast ${show(middle[k])}, happened ${show(target[k])} ${o.yLabel}\nmodel's own ± ${show(own[k])}, whole error ± ${show(all[k])}\nepistemic share ${Math.round(100 * own[k] ** 2 / all[k] ** 2)} %`));
}
