const D = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const SCORES = { auc: "removal AUC", correlation: "correlation", log_likelihood: "log-likelihood" };
const DEFAULT_OFF = new Set(["constant", "ensemble, its own mean"]);
const state = { model: D.models[D.models.length - 1], topic: "all", lead: "all", score: "correlation", off: new Set(DEFAULT_OFF), quantity: 0, band: null, channel: null };

const PALETTES = { delta: ["#c8553d", "#e08a3c", "#a83279", "#d9a21b", "#7a3b2e", "#e0637c"], sampled: ["#1f6f8b", "#4fa3c7", "#2a9d8f", "#5b6fb5", "#3d5a80"], baseline: ["#7c828c", "#a3a89f", "#5e6b5e"] };
const COLOUR = {}, used = {};
for (const e of D.estimators) { const p = PALETTES[e.kind]; used[e.kind] = used[e.kind] || 0; COLOUR[e.name] = p[used[e.kind]++ % p.length]; }
const index = new Map(D.summary.map(r => [r.slice(0, 5).join("|"), r]));
const row = (estimator, score, topic, lead) => index.get([state.model, estimator, score, topic, lead].join("|"));
const run = () => D.runs[state.model] || D.runs[Object.keys(D.runs)[0]];
const chosen = () => D.estimators.map(e => e.name).filter(n => !state.off.has(n));

function options(select, values, current, text = v => v) {
  select.replaceChildren(...values.map(v => { const o = document.createElement("option"); o.value = v; o.textContent = text(v); o.selected = String(v) === String(current); return o; }));
}
function leadsOf(topic) { return [...new Set(D.summary.filter(r => r[3] === topic).map(r => r[4]))].filter(l => l !== "all").sort((a, b) => a - b); }
function topics() { return [...new Set(D.summary.map(r => r[3]))]; }

function drawDots() {
  const host = $("dots"); host.replaceChildren();
  const names = chosen().filter(n => n !== D.reference && row(n, "auc", state.topic, state.lead));
  names.sort((a, b) => row(b, state.score, state.topic, state.lead)[6] - row(a, state.score, state.topic, state.lead)[6]);
  Object.keys(SCORES).forEach((score, k) => {
    const box = document.createElement("div"); host.append(box);
    dotPlot(box, names.map(n => { const r = row(n, score, state.topic, state.lead); return { name: n, colour: COLOUR[n], value: r[6], error: r[7] }; }), SCORES[score], k === 0);
  });
  host.style.gridTemplateColumns = innerWidth > 820 ? "46fr 31fr 31fr" : "";
}
function drawLeads() {
  const leads = leadsOf(state.topic);
  linePlot($("leads"), chosen().filter(n => n !== D.reference).map(n => ({ name: n, colour: COLOUR[n],
    points: leads.map(l => row(n, state.score, state.topic, l)).filter(Boolean).map(r => [+r[4], r[6], 2 * r[7]]) })),
    { xLabel: "lead in days", yLabel: SCORES[state.score] + " less the ensemble's", xTicks: leads.map(Number), zero: true });
}
function drawPareto() {
  const costs = run().estimator_costs;
  scatterPlot($("pareto"), chosen().filter(n => costs[n]).map(n => { const r = row(n, state.score, state.topic, state.lead);
    return r && { name: n, colour: COLOUR[n], x: costs[n], y: r[6], error: r[7] }; }).filter(Boolean),
    { xLabel: "forward rollouts a start, all quantities", yLabel: SCORES[state.score] + " less the ensemble's", right: 150 });
}
function quantities() {
  const q = run().quantities, n = run().forecasts.forecast.length;
  return q.map((v, k) => k).filter(k => k < n && (state.topic === "all" || q[k].topic === state.topic) && (state.lead === "all" || +state.lead === q[k].lead));
}
function drawForecast() {
  const list = quantities(), f = run().forecasts, bands = Object.keys(f.bands);
  if (!list.includes(state.quantity)) state.quantity = list.length ? list[0] : 0;
  if (!bands.includes(state.band)) state.band = bands[0];
  options($("quantity"), list, state.quantity, k => run().quantities[k].name);
  options($("band"), bands, state.band);
  const window = Math.min(60, f.times.length), slider = $("when");
  slider.max = f.times.length - window;
  const from = Math.min(+slider.value, +slider.max), cut = a => a.slice(from, from + window), k = state.quantity, b = f.bands[state.band];
  bandPlot($("forecast"), cut(f.times), cut(f.forecast[k]), cut(b.own[k]), cut(b.all[k]), cut(f.target[k]),
    { yLabel: run().quantities[k].unit, label: run().quantities[k].name });
}
function drawRemoval() {
  const r = run().removal, count = r[D.reference].all.length;
  linePlot($("removal"), chosen().map(n => ({ name: n, colour: COLOUR[n], dash: n === D.reference ? "5 4" : null, width: 1.8,
    points: (r[n][state.topic] || r[n].all).map((v, k) => [k * 0.05, v]) })), { width: 520, height: 380, xLabel: "share removed", yLabel: "error left over error of all", x: [0, 0.05 * (count - 1)] });
}
function drawSizes() {
  const r = run().sizes;
  const f = linePlot($("sizes"), chosen().map(n => ({ name: n, colour: COLOUR[n], width: 1.8, points: r[n][state.topic] || r[n].all })),
    { width: 520, height: 380, xLabel: "predicted error", yLabel: "actual error" });
  const ends = extent(chosen().flatMap(n => (r[n][state.topic] || r[n].all).map(p => p[0])), 0);
  make("line", { x1: f.x(ends[0]), x2: f.x(ends[1]), y1: f.y(ends[0]), y2: f.y(ends[1]), class: "zero" }, null, f.svg);
}
function drawSkill() {
  const rows = run().skill, channels = [...new Set(rows.map(r => r.channel))];
  if (!channels.includes(state.channel)) state.channel = channels[0];
  options($("channel"), channels, state.channel);
  const colours = { model: "var(--delta)", persistence: "#7c828c", climatology: "#a3a89f", autoregression: "#1f6f8b" };
  const own = rows.filter(r => r.channel === state.channel);
  linePlot($("skill"), [...new Set(own.map(r => r.forecast))].map(n => ({ name: n, colour: colours[n] || "#888", dash: n === "climatology" ? "4 4" : null,
    points: own.filter(r => r.forecast === n).map(r => [r.lead_hours / 24, r.relative_mse]) })), { xLabel: "lead in days", yLabel: "squared error over climatology's", y: [0, Math.min(2, extent(own.map(r => r.relative_mse))[1])] });
}
function cells(header, rows) {
  const table = document.createElement("table"), top = table.createTHead().insertRow(), body = table.createTBody();
  header.forEach((h, k) => { const th = document.createElement("th"); th.textContent = h; top.append(th);
    th.onclick = () => { const sign = th.dataset.up ? -1 : 1; th.dataset.up = th.dataset.up ? "" : "1";
      [...body.rows].sort((a, b) => sign * (parseFloat(b.cells[k].dataset.v) - parseFloat(a.cells[k].dataset.v) || (a.cells[k].textContent < b.cells[k].textContent ? -1 : 1))).forEach(r => body.append(r)); }; });
  for (const r of rows) { const line = body.insertRow(); for (const c of r) { const td = line.insertCell(); td.textContent = c.text ?? c; td.dataset.v = c.value ?? c; if (c.mark) td.className = c.mark; } }
  return table;
}
function drawTable() {
  const own = chosen().map(n => { const first = row(n, "auc", state.topic, state.lead); if (!first) return null;
    return [{ text: n }, ...Object.keys(SCORES).flatMap(s => { const r = row(n, s, state.topic, state.lead), z = r[6] / (r[7] || Infinity);
      return [{ text: show(r[5], 4), value: r[5] }, { text: n === D.reference ? "" : signed(r[6]) + " ± " + r[7].toFixed(3), value: r[6], mark: z > 2 ? "good" : z < -2 ? "bad" : "" }]; })]; }).filter(Boolean);
  $("table").replaceChildren(cells(["estimator", ...Object.values(SCORES).flatMap(s => [s, "less the ensemble's"])], own));
}
function drawCosts() {
  const r = run();
  $("costs").replaceChildren(cells(["inference", "quantities", "ms a start", "forward rollouts"], r.costs.map(c => [{ text: c[0] }, c[1], { text: show(1000 * c[2]), value: c[2] }, { text: show(c[3]), value: c[3] }])),
    cells(["training and fitting", "seconds"], Object.entries(r.training).map(([k, v]) => [{ text: k }, { text: show(v), value: v }])));
  $("made").textContent = `${D.command}. ${r.parameters.toLocaleString("en")} parameters; ${r.starts} hold-out starts, ${r.first} to ${r.last}. One forward-mode direction costs as much as ${show(r.break_even)} gradients of one quantity` +
    (r.residual_correlation ? `; the largest eigenvalue of the residuals' correlation is ${show(r.residual_correlation)} (1 if outputs erred independently).` : ".");
}
function lead() {
  const r = run();
  $("lead").textContent = `${D.record.join(". ")}. ${r.quantities.length} quantities of interest, ${r.starts} hold-out starts. How uncertain is each forecast, had the training data been different, and which way of asking is worth its price?`;
  const best = D.estimators.filter(e => e.kind === "delta" && row(e.name, "auc", "all", "all")).map(e => e.name)
    .sort((a, b) => row(b, "log_likelihood", "all", "all")[6] - row(a, "log_likelihood", "all", "all")[6])[0];
  const lines = [];
  const say = (name, score) => { const x = row(name, score, "all", "all"); return `${signed(x[6])} ± ${x[7].toFixed(3)} ${SCORES[score]}`; };
  lines.push(`${best} against the ensemble: ${Object.keys(SCORES).map(s => say(best, s)).join(", ")}.`);
  lines.push(`The gradient alone, without any Σ: ${Object.keys(SCORES).map(s => say("gradient norm", s)).join(", ")}. What a Σ adds is the difference between these two lines.`);
  const e = r.skill.filter(x => x.forecast === "model"), hours = Math.min(...e.map(x => Math.abs(x.lead_hours - 24))) + 24;
  const good = e.filter(x => x.lead_hours === hours);
  lines.push(`At ${show(hours)} hours the model's squared error is ${good.map(x => `${show(x.relative_mse, 2)} (${x.channel.replaceAll("_", " ")})`).slice(0, 8).join(", ")} of climatology's.`);
  $("findings").replaceChildren(...lines.map(t => { const li = document.createElement("li"); li.textContent = t; return li; }));
}
function draw() {
  options($("model"), D.models, state.model); options($("topic"), topics(), state.topic);
  const leads = ["all", ...leadsOf(state.topic)];
  if (!leads.includes(state.lead)) state.lead = "all";
  options($("lead-days"), leads, state.lead, v => v === "all" ? "all" : `${v} d`); options($("score"), Object.keys(SCORES), state.score, s => SCORES[s]);
  lead(); drawDots(); drawLeads(); drawPareto(); drawForecast(); drawRemoval(); drawSizes(); drawSkill(); drawTable(); drawCosts();
  document.body.dataset.shown = [state.model, state.topic, state.lead, state.score, chosen().length].join("|");
  const hash = new URLSearchParams({ model: state.model, topic: state.topic, lead: state.lead, score: state.score, off: [...state.off].join(";") });
  history.replaceState(null, "", "#" + hash);
}
// A link remembers what was chosen: #topic=rain&lead=2&score=auc&off=constant;dropout
function recall() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const k of ["model", "topic", "lead", "score"]) if (given.has(k)) state[k] = given.get(k);
  if (!D.models.includes(state.model)) state.model = D.models[D.models.length - 1];
  if (!topics().includes(state.topic)) state.topic = "all";
  if (!(state.score in SCORES)) state.score = "correlation";
  if (given.has("off")) state.off = new Set(given.get("off").split(";").filter(Boolean));
}
recall();
for (const [id, key] of [["model", "model"], ["topic", "topic"], ["lead-days", "lead"], ["score", "score"], ["band", "band"], ["channel", "channel"]])
  $(id).addEventListener("change", e => { state[key] = e.target.value; draw(); });
$("quantity").addEventListener("change", e => { state.quantity = +e.target.value; drawForecast(); });
$("when").addEventListener("input", drawForecast);
for (const e of D.estimators) {
  const label = document.createElement("label"), box = document.createElement("input");
  box.type = "checkbox"; box.checked = !state.off.has(e.name); box.dataset.estimator = e.name;
  box.addEventListener("change", () => { box.checked ? state.off.delete(e.name) : state.off.add(e.name); draw(); });
  label.style.color = COLOUR[e.name]; label.append(box, " " + e.name); $("estimators").append(label);
}
$("notes").replaceChildren(...D.notes.map(t => { const li = document.createElement("li"); li.textContent = t; return li; }));
$("attribution").textContent = D.attribution;
addEventListener("hashchange", () => { recall(); draw(); });
draw();
