// Accuracy and loss over rounds, bytes or time: mean, band, every agent on demand.

const X = { rounds: "round", bytes: "bytes sent by all agents", seconds: "time" };
const MEASURES = {
  test_accuracy: "test", test_accuracy_all: "test, answers among all labels", test_accuracy_own: "test, answers among own labels",
  test_accuracy_weighted: "test, weighted by own labels", validation_accuracy: "validation",
  train_loss: "training", validation_loss: "validation", test_loss: "test",
};
/** A measure in words, whatever the task. */
const measureName = (name) => MEASURES[name] ?? `${name.startsWith("test_") ? "test" : "validation"}, ${named(name.replace(/^(test|validation)_/, ""))}`;
const axis = (name) => `test ${named(name)}${isShare(name) ? " (%)" : ""}`;
const figuresOf = () => [...new Set(R.runs.flatMap((each) => [...each.figures.map((name) => `test_${name}`), `validation_${each.figure}`]))];
const isShareMeasure = (name) => isShare(name.replace(/^(test|validation)_/, ""));
const WHOLE = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((first) => first * 10 ** power)); // there is no half a round
const plots = new Map(); // by the id of the box they are in

/** A plot in a box: `tables` are [xs, ...columns] with `lines` describing the columns in order. */
function plot(box, tables, lines, { y, yTick, title = "", height = 300, x = state.x, logX = state.logX, logY = state.logY, bands = [], splits }) {
  plots.get(box.id)?.destroy();
  box.replaceChildren();
  box.setAttribute("role", "figure");
  box.setAttribute("aria-label", `${title} by ${X[x]}`);
  const data = uPlot.join(tables.map(([xs, ...columns]) => tidy(xs, columns, logX, logY)));
  if (!data[0].length) {
    plots.delete(box.id);
    box.append(el("p", { class: "note" }, "Nothing to draw on these axes: a logarithm needs values above zero."));
    return;
  }
  const xText = x === "bytes" ? bytes : x === "seconds" ? duration : (value) => (value == null ? "–" : String(value));
  const axis = { labelFont: "12px system-ui, sans-serif", labelSize: 20, labelGap: 2, stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
  const made = new uPlot({
    width: roomIn(box), height,
    padding: [8, 12, 0, 0],
    scales: { x: { time: false, distr: logX ? 3 : 1 }, y: { distr: logY ? 3 : 1 } },
    axes: [
      { ...axis, label: X[x], values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : xText(tick))), space: x === "rounds" ? 50 : 80, size: 34,
        ...(x === "rounds" ? { incrs: WHOLE } : {}), ...(splits ? { splits } : {}) },
      { ...axis, label: title, size: 56, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : (yTick ?? y)(tick))) },
    ],
    series: [
      { label: X[x], value: (_, value) => xText(value) },
      ...lines.map((line) => ({
        label: line.label, stroke: line.stroke, width: line.width ?? 2, class: line.edge ? "edge" : "line", dash: line.dash,
        spanGaps: true, points: { show: line.points ?? (data[0].length < 3 && !line.edge), size: 6, fill: line.stroke },
        show: !state.hidden.has(line.owner ?? line.label), value: (_, value) => (value == null ? "–" : y(value)),
      })),
    ],
    bands,
    cursor: { focus: { prox: 24 }, dataIdx: nearestKnown, drag: { x: true, y: false } },
    focus: { alpha: 0.35 },
    legend: { live: true },
    hooks: { setSeries: [(u, index, change) => follow(u, index, change, lines)] },
  }, data, box);
  plots.set(box.id, made);
  if (title) box.append(saveButtons(box.id, title));
  for (const name of box.querySelectorAll(".u-legend .line th")) { // a name is a switch, for the keyboard too
    for (const [key, value] of [["tabindex", 0], ["role", "button"], ["aria-label", `show or hide ${name.textContent}`]]) name.setAttribute(key, value);
    name.addEventListener("keydown", (event) => { if (["Enter", " "].includes(event.key)) { event.preventDefault(); name.click(); } });
  }
}

/** A sheet of paper is narrower than most screens. */
const roomIn = (box) => Math.min(Math.max(220, box.clientWidth), state.paper ? 640 : Infinity);

/** Points in order, one for each x; with a log axis nothing at or below zero. */
function tidy(xs, columns, logX, logY) {
  const kept = xs.map((_, i) => i).filter((i) => {
    const next = xs.slice(i + 1).find((value) => value != null);
    return xs[i] != null && (!logX || xs[i] > 0) && next !== xs[i];
  });
  const shown = (value) => (value == null || (logY && value <= 0) ? null : value);
  return [kept.map((i) => xs[i]), ...columns.map((column) => kept.map((i) => shown(column[i])))];
}

/** Runs evaluated at other places leave holes; the value shown is the nearest there is. */
function nearestKnown(u, series, index) {
  const values = u.data[series];
  if (values[index] != null) return index;
  for (let step = 1; step < values.length; step++) {
    if (values[index - step] != null) return index - step;
    if (values[index + step] != null) return index + step;
  }
  return index;
}

/** A curve hidden by its legend takes its band along, and stays hidden when the page is drawn again. */
function follow(u, index, change, lines) {
  if (index == null || change.show == null || lines[index - 1].edge) return;
  const label = lines[index - 1].label;
  if (change.show) state.hidden.delete(label);
  else state.hidden.add(label);
  lines.forEach((line, i) => {
    if (line.edge && line.owner === label) u.setSeries(i + 1, { show: change.show });
  });
}

const percentTick = (value) => `${+(100 * value).toFixed(2)} %`;

function curve(box, measure, y) {
  const tables = [], lines = [], bands = [];
  const [low, high] = { p: ["p10", "p90"], m: ["min", "max"], s: ["seeds_min", "seeds_max"] }[state.band] ?? [];
  R.series.forEach((series, i) => {
    const values = series.measures[measure], stroke = seriesColour(i);
    const label = series.seeds.length > 1 ? `${series.label} (${series.seeds.length} seeds)` : series.label;
    const banded = low && values[low];
    tables.push([series[state.x], ...(banded ? [values[high], values[low]] : []), values.mean]);
    if (banded) {
      bands.push({ series: [lines.length + 1, lines.length + 2], fill: mixed(stroke, 0.16) });
      for (const edge of ["high", "low"]) lines.push({ label: edge, owner: label, edge: true, stroke: mixed(stroke, 0.3), width: 0.5 });
    }
    lines.push({ label, stroke, dash: seriesDash(i) });
  });
  if (state.every) {
    const own = run();
    tables.push([own.curves[state.x], ...own.curves.measures[measure]]);
    own.curves.measures[measure].forEach((_, i) => {
      lines.push({ label: `agent ${own.agents[i].agent}`, stroke: agentColour(i, own.curves.measures[measure].length), width: 1 });
    });
  }
  const [on, what] = measure.includes("loss") ? [MEASURES[measure], R.runs[0].task === "regression" ? "loss" : "loss (nats)"]
    : [measureName(measure).split(",")[0], `${named(measure.replace(/^(test|validation)_/, "").replace(/^accuracy_.*/, "accuracy"))}${isShareMeasure(measure) ? " (%)" : ""}`];
  plot(box, tables, lines, { y, title: `${on} ${what}`, yTick: isShareMeasure(measure) ? percentTick : figure, bands });
}

/** As many hues as there are agents. */
const agentColour = (i, count) => `hsl(${Math.round(360 * i / count)} 62% ${parseInt(colour("ink").slice(1, 3), 16) > 128 ? 66 : 42}%)`;

function mixed(hex, alpha) {
  const parts = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return `rgba(${parts.join(",")},${alpha})`;
}

function drawCurves() {
  const section = $("curves");
  const set = (key) => (value) => { state[key] = value; redraw(drawCurves); };
  const several = R.series.some((series) => series.seeds.length > 1);
  const bandsOf = [["p", "agents, 10–90 %"], ["m", "agents, all"], ...(several ? [["s", "seeds, all"]] : []), ["none", "none"]];
  heading(section, "Curves", "Mean over agents. Point at a curve for its values, click a name to hide it, drag to zoom, double-click to zoom out.",
    segments("horizontal axis", [["rounds", "round"], ["bytes", "bytes"], ["seconds", "time"]], state.x, set("x")),
    check("log x", state.logX, set("logX")), check("log y", state.logY, set("logY")),
    select("band", bandsOf, state.band, set("band")),
    check("every agent", state.every, set("every")), state.every ? runSelect() : null);
  const known = (measure) => R.series.some((series) => series.measures[measure]?.mean.some((value) => value != null));
  const y = (v) => (isShareMeasure(state.accuracy) ? percent(v, v > 0.999 && v < 1 ? 2 : 1) : figure(v));
  const cards = [["accuracy", figuresOf().filter(known), y],
    ["loss", ["train_loss", "validation_loss", "test_loss"], figure]];
  const two = el("div", { class: "two" });
  section.append(two);
  for (const [name, options, y] of cards) {
    if (!options.includes(state[name])) state[name] = options[0]; // it was picked for another task
    const box = el("div", { class: "chart", id: `chart-${name}` });
    two.append(el("div", { class: "card" }, el("h3", {}, name === "loss" ? name : named(R.runs[0].figure)),
      el("div", { class: "controls" }, select("measured on", options.map((o) => [o, measureName(o)]), state[name], set(name))), box));
    curve(box, state[name], y);
  }
}
