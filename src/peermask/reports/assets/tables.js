// A table that can be taken along as Markdown, LaTeX or CSV.

function agentRows() {
  const own = run();
  if (own.task !== "classification") return figureRows(own);
  const rows = own.agents.map((agent) => [agent.agent, agent.labels.map((label) => own.classes[label] ?? label).join(" "),
    agent.retention, agent.density, agent.accuracy, agent[`accuracy_${other(own)}`], agent.accuracy_weighted, agent.links, Math.round(agent.sent)]);
  const average = (place) => mean(rows.map((row) => row[place]));
  return {
    columns: ["agent", "labels", "retention", "density", "accuracy", `${other(own)} labels`, "weighted", "links", "sent bytes"], rows,
    total: ["mean", "", ...[2, 3, 4, 5, 6, 7].map(average), Math.round(average(8))],
  };
}

/** Of a task without accuracies: its own figures. */
function figureRows(own) {
  const rows = own.agents.map((agent) => [agent.agent, agent.retention, agent.density,
    ...own.figures.map((name) => agent.figures[name]), agent.links, Math.round(agent.sent)]);
  const count = own.figures.length, average = (place) => mean(rows.map((row) => row[place]));
  return {
    columns: ["agent", "retention", "density", ...own.figures.map(named), "links", "sent bytes"], rows,
    total: ["mean", ...[...Array(count + 3).keys()].map((place) => average(place + 1)), Math.round(average(count + 4))],
  };
}

function runRows() {
  if (R.runs[0].task !== "classification") {
    const figures = R.runs[0].figures;
    const rows = R.runs.map((each) => [each.label, each.round, ...figures.map((name) => mean(each.agents.map((agent) => agent.figures[name]))),
      mean(each.agents.map((agent) => agent.density)), Math.round(each.agents.reduce((sum, agent) => sum + agent.sent, 0)), each.seconds]);
    return { columns: ["run", "round", ...figures.map((name) => `mean ${named(name)}`), "density", "sent bytes", "seconds"], rows };
  }
  const rows = R.runs.map((each) => {
    const known = each.agents.map((agent) => agent.accuracy).filter((value) => value != null);
    const sent = each.agents.reduce((sum, agent) => sum + agent.sent, 0);
    const average = (name) => mean(each.agents.map((agent) => agent[name]));
    return [each.label, each.round, each.accuracy, average("accuracy_all"), average("accuracy_own"), average("accuracy_weighted"),
      known.length ? Math.min(...known) : null, average("density"), Math.round(sent), each.seconds];
  });
  return { columns: ["run", "round", "mean accuracy", "all labels", "own labels", "weighted", "worst agent", "density", "sent bytes", "seconds"], rows };
}

const TEXT = ["labels", "run", "algorithm"], SHARES = ["density", "accuracy", "mean accuracy", "all labels", "own labels", "weighted", "worst agent", "F1", "mean F1", "average precision", "mean average precision"];

function cell(column, value) {
  if (value == null || value === "") return value === "" ? "" : "–";
  if (SHARES.includes(column)) return percent(value);
  if (column === "sent bytes") return bytes(value);
  return typeof value === "number" && !Number.isInteger(value) ? figure(value) : String(value);
}

function plain(column, value) {
  if (value == null) return "";
  return typeof value === "number" && !Number.isInteger(value) ? String(+value.toPrecision(5)) : String(value);
}

const FORMATS = {
  Markdown({ columns, rows, total }) {
    const line = (cells) => `| ${cells.map((text) => text.replaceAll("|", "\\|")).join(" | ")} |`;
    const all = [...rows, ...(total ? [total] : [])].map((row) => line(row.map((value, i) => cell(columns[i], value))));
    return [line(columns), `|${columns.map((name) => (TEXT.includes(name) ? " :-- |" : " --: |")).join("")}`, ...all].join("\n");
  },
  LaTeX({ columns, rows, total }) {
    const special = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "–": "--" };
    const safe = (text) => text.replace(/[\\&%$#_{}~^–]/g, (character) => special[character] ?? `\\${character}`);
    const line = (cells) => `${cells.map(safe).join(" & ")} \\\\`;
    const shown = (row) => line(row.map((value, i) => cell(columns[i], value)));
    return [`\\begin{tabular}{${columns.map((name) => (TEXT.includes(name) ? "l" : "r")).join("")}}`, "\\hline", line(columns),
      "\\hline", ...rows.map(shown), ...(total ? ["\\hline", shown(total)] : []), "\\hline", "\\end{tabular}"].join("\n");
  },
  CSV({ columns, rows }) {
    const line = (cells) => cells.map((text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)).join(",");
    return [line(columns), ...rows.map((row) => line(row.map((value, i) => plain(columns[i], value))))].join("\n");
  },
};

async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no permission, or no secure context: the old way
    const area = el("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}

function tableCard(id, title, table) {
  const kind = (name) => (TEXT.includes(name) ? "text" : "");
  const row = (values, attributes) => el("tr", attributes, values.map((value, i) => el("td", { class: kind(table.columns[i]) }, cell(table.columns[i], value))));
  return el("div", { class: "card", id, style: "margin-bottom:20px" },
    el("div", { class: "head copy" }, el("h3", {}, title),
      Object.keys(FORMATS).map((name) => el("button", {
        type: "button", "data-format": name, onclick: (event) => copy(FORMATS[name](table), event.target),
      }, `Copy ${name}`))),
    el("div", { class: "scroll" }, el("table", { class: "data" },
      el("thead", {}, el("tr", {}, table.columns.map((name) => el("th", { class: kind(name) }, name)))),
      el("tbody", {}, table.rows.map((values) => row(values)), table.total ? row(table.total, { class: "total" }) : null))));
}

function drawTables() {
  const section = $("table");
  heading(section, "Table", `Accuracies and other figures of an agent are means over ${run().reported}.`, runSelect());
  if (R.runs.length > 1) section.append(tableCard("table-runs", "runs", runRows()));
  section.append(tableCard("table-agents", `agents of ${run().label}`, agentRows()));
}

function drawConfig() {
  const section = $("config"), own = run();
  heading(section, "Config", "Everything that made this run; the same config and seed give the same result.", runSelect());
  section.append(
    el("details", {}, el("summary", {}, "resolved config"), el("pre", {}, own.config)),
    el("details", {}, el("summary", {}, "manifest"), el("pre", {}, JSON.stringify(own.manifest, null, 2))));
}
