// A sweep: a line where one key varies, a map where two do, and always the table.

/** What rows are compared by: held-out data, or the test where nothing is held out. */
const reachedBy = (row) => (row.validation[0] != null ? row.validation : row.test);
const spreadText = ([value, deviation]) => {
  if (value == null || deviation == null) return shown(R.sweep.figure, value);
  return isShare(R.sweep.figure) ? `${(100 * value).toFixed(1)} ± ${percent(deviation)}` : `${figure(value)} ± ${figure(deviation)}`;
};
const valuesOf = (rows, key) => [...new Set(rows.map((row) => row.values[key]).filter((value) => value !== ""))];
const inOrder = (values) => (values.every((value) => Number.isFinite(+value)) ? values.sort((a, b) => a - b) : values);

function drawSweep() {
  const section = $("sweep"), sweep = R.sweep;
  section.hidden = !sweep;
  if (!sweep) return;
  const { rows } = sweep, held = rows.some((row) => row.validation[0] != null);
  const varying = sweep.keys.filter((key) => valuesOf(rows, key).length > 1);
  heading(section, "Sweep", `Mean ${named(sweep.figure)} over agents and seeds, on ${held ? "held-out" : "test"} data.${sweep.missing ? ` ${sweep.missing} runs are missing.` : ""}`);
  const box = el("div", { class: "chart", id: "chart-sweep" });
  const numeric = varying.length === 1 && valuesOf(rows, varying[0]).every((value) => Number.isFinite(+value));
  if (numeric) section.append(el("div", { class: "card", style: "margin-bottom:20px" }, el("h3", {}, `${named(sweep.figure)} by ${varying[0]}`), box));
  else if (varying.length === 1) section.append(sweepBars(rows, varying[0]));
  else if (varying.length === 2) section.append(...sweepMaps(rows, varying));
  section.append(tableCard("table-sweep", "variations", {
    columns: [...sweep.keys, "algorithm", "seeds", "held out", "test", "sent bytes"],
    rows: rows.map((row) => [...sweep.keys.map((key) => row.values[key]), row.best ? `${row.algorithm} (best)` : row.algorithm, row.seeds,
      ...(row.seeds ? [spreadText(row.validation), spreadText(row.test)] : ["diverged", "diverged"]), row.sent == null ? null : Math.round(row.sent)]),
  }));
  if (numeric) sweepLines(box, rows, varying[0]);
}

/** A line for each algorithm, with a band of one standard deviation; level where the key does not touch it. */
function sweepLines(box, rows, key) {
  const tables = [], lines = [], bands = [], xs = inOrder(valuesOf(rows, key)).map(Number);
  [...new Set(rows.map((row) => row.place))].forEach((place, i) => {
    const own = rows.filter((row) => row.place === place), label = own[0].algorithm, stroke = seriesColour(i);
    const at = xs.map((x) => reachedBy(own.find((row) => row.values[key] === "" || +row.values[key] === x) ?? { validation: [null], test: [null] }));
    const edge = (sign) => at.map(([value, deviation]) => (value == null || deviation == null ? null : value + sign * deviation));
    tables.push([xs, edge(1), edge(-1), at.map(([value]) => value)]);
    bands.push({ series: [lines.length + 1, lines.length + 2], fill: mixed(stroke, 0.16) });
    for (const name of ["high", "low"]) lines.push({ label: name, owner: label, edge: true, stroke: mixed(stroke, 0.3), width: 0.5 });
    lines.push({ label, stroke, points: true });
  });
  X.value = key;
  const share = isShare(R.sweep.figure);
  plot(box, tables, lines, { x: "value", logX: xs[0] > 0 && xs.at(-1) >= 10 * xs[0], logY: false, bands, y: (v) => shown(R.sweep.figure, v),
    yTick: share ? percentTick : figure, title: `${named(R.sweep.figure)}${share ? " (%)" : ""}`, splits: () => xs });
}

function sweepBars(rows, key) {
  const most = Math.max(...rows.map((row) => reachedBy(row)[0] ?? 0), 1e-9);
  return el("div", { class: "card", style: "margin-bottom:20px" }, el("h3", {}, `${named(R.sweep.figure)} by ${key}`),
    bars(rows.map((row) => [[row.values[key], row.algorithm].filter(Boolean).join(", "), (reachedBy(row)[0] ?? 0) / (isShare(R.sweep.figure) ? 1 : most), spreadText(reachedBy(row))])));
}

/** For each algorithm that both keys touch, a map of values. */
function sweepMaps(rows, [down, across]) {
  const known = rows.map((row) => reachedBy(row)[0]).filter((value) => value != null);
  const low = Math.min(...known), high = Math.max(...known);
  const touched = [...new Set(rows.filter((row) => row.values[down] !== "" && row.values[across] !== "").map((row) => row.place))];
  return touched.map((place) => {
    const own = rows.filter((row) => row.place === place), columns = inOrder(valuesOf(own, across));
    const field = (y, x) => {
      const row = own.find((each) => each.values[down] === y && each.values[across] === x), value = row && reachedBy(row)[0];
      if (value == null) return el("td", { class: "field" }, row ? "diverged" : "");
      const share = high > low ? (value - low) / (high - low) : 1, made = el("td", { class: row.best ? "field best" : "field" }, spreadText(reachedBy(row)));
      made.style.background = rgb(ramp(share));
      made.style.color = share > 0.55 ? "#111" : "#fff";
      return made;
    };
    return el("div", { class: "card", style: "margin-bottom:20px" }, el("h3", {}, `${own[0].algorithm}: ${down} down, ${across} across`),
      el("div", { class: "scroll" }, el("table", { class: "data map" },
        el("thead", {}, el("tr", {}, el("th"), columns.map((x) => el("th", {}, x)))),
        el("tbody", {}, inOrder(valuesOf(own, down)).map((y) => el("tr", {}, el("th", {}, y), columns.map((x) => field(y, x))))))));
  });
}
