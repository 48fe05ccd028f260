// The page as a whole: what is on top, the theme, paper, and data that still grows.

function drawTop() {
  const top = R.series[R.sweep?.top ?? 0], group = top.runs.map((place) => R.runs[place]), first = group[0];
  const agents = group.flatMap((each) => each.agents), over = group.length > 1 ? `, over ${group.length} seeds` : "";
  const chosen = R.sweep?.rows.filter((row) => row.best) ?? [];
  const [headline, ...versus] = R.sweep ? chosen.map((row) => `${row.variation ? `${row.variation} is best for ${row.algorithm}` : `${row.algorithm} is best as it is`}: ${spreadText(row.validation)} on held-out data`) : gains();
  $("title").textContent = headline ?? `${top.label} reaches ${shown(first.figure, reportedMean(top))} mean ${named(first.figure)}`;
  const status = group.every((each) => each.status === first.status) ? first.status : "not all finished";
  $("subtitle").textContent = `${R.title}: ${first.agents.length} agents on ${first.dataset}, `
    + `${first.weights.toLocaleString("en")} masked weights, round ${first.round} of ${first.rounds} (${status})${over}`;
  $("notes").replaceChildren(...[...versus, ...(R.notes ?? [])].map((line) => el("li", {}, line)));
  const known = agents.filter((agent) => agent.accuracy != null);
  const worst = known.reduce((low, agent) => (low == null || agent.accuracy < low.accuracy ? agent : low), null);
  const average = (value) => mean(group.map(value));
  const sum = (each) => each.agents.reduce((total, agent) => total + agent.sent, 0);
  const beside = percent(mean(agents.map((agent) => agent[`accuracy_${other(first)}`])));
  const readout = first.task === "classification" ? `answers among ${first.readout} labels; among ${other(first)} labels ${beside}` : "";
  const figures = [
    [shown(first.figure, reportedMean(top)), `mean test ${named(first.figure)} of ${top.label}${over}`, readout],
    [shown(first.figure, worst?.accuracy), `worst agent${worst ? ` (agent ${worst.agent})` : ""}`],
    [bytes(average(sum)), `sent by all ${first.agents.length} agents`],
    [percent(mean(agents.map((agent) => agent.density))), "mean density", "share of weights kept"],
    [duration(average((each) => each.seconds)), "of computing"]];
  $("summary").replaceChildren(...figures.map(([value, name, note]) => el("div", { class: "figure" },
    el("b", {}, value), el("span", {}, name), note ? el("small", {}, note) : null)));
  const sections = [...document.querySelectorAll("main > section[data-name]")].filter((section) => !section.hidden);
  $("nav").replaceChildren(...sections.map((section) => el("a", { href: `#${section.id}` }, section.dataset.name)));
}

/** What the runs of a curve report, as tables do: the mean over seeds of the figure that counts. */
const reportedMean = (series) => mean(series.runs.map((place) => R.runs[place].accuracy));

/** What the first curve gains over each other in the end, in points of mean accuracy, or in the figure that counts. */
function gains() {
  const [first, ...others] = R.series, { figure } = R.runs[0], share = isShare(figure), own = reportedMean(first);
  return others.filter((each) => own != null && reportedMean(each) != null).map((each) => {
    const gain = (share ? 100 : 1) * (own - reportedMean(each));
    const size = `${Math.abs(gain).toFixed(share ? 1 : 3)} ${share ? `points of mean ${named(figure)}` : `in mean ${named(figure)}`}`;
    if (+Math.abs(gain).toFixed(share ? 1 : 3) === 0) return `${first.label} and ${each.label} reach the same mean ${named(figure)}`;
    return gain > 0 ? `${first.label} gains ${size} over ${each.label}${lost(each, first)}` : `${first.label} is ${size} behind ${each.label}${lost(first, each)}`;
  });
}

/** What to change where runs that send are behind runs that send nothing. */
function lost(behind, ahead) {
  const [remedy, sends] = [behind, ahead].map((series) => R.runs[series.runs[0]].remedy);
  return remedy && !sends ? `: collaboration lost here; ${remedy}` : "";
}

function draw() {
  const ready = R.runs.length > 0 && R.runs[0].curves.rounds.length > 0;
  $("waiting").hidden = ready;
  document.querySelectorAll("main > section").forEach((section) => { section.hidden = !ready; });
  if (!ready) {
    $("title").textContent = R.title;
    return;
  }
  state.agent = Math.min(state.agent, run().shown - 1);
  for (const part of [drawSweep, drawCurves, drawAgents, drawData, drawMasks, drawBytes, drawFaults, drawTables, drawConfig, drawTop]) part();
}

/** Plots are as wide as their boxes, whatever the window does. */
function refit() {
  for (const [id, made] of plots) {
    const box = $(id);
    if (box) made.setSize({ width: roomIn(box), height: made.height });
  }
  if (run()?.masks && !$("masks").hidden) paintMasks();
}

/** Paper is white: draw in the light theme for the while. */
function forPaper(on) {
  state.paper = on;
  if (on) document.documentElement.dataset.theme = "light";
  else delete document.documentElement.dataset.theme;
  draw();
}

/** Ask for newer data; the answer is empty as long as nothing has changed. */
async function poll(tag) {
  const badge = $("live");
  badge.hidden = false;
  let next = tag;
  if (document.querySelector("select:focus, input[type=range]:active")) { // not under somebody's hand
    setTimeout(poll, 1000, tag);
    return;
  }
  try {
    const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status === 200) {
      next = answer.headers.get("ETag");
      R = await answer.json();
      const open = [...document.querySelectorAll("details")].map((each) => each.open);
      redraw(draw);
      document.querySelectorAll("details").forEach((each, i) => { each.open = open[i]; });
    }
    badge.className = "live";
    badge.textContent = R.runs.length ? `live, round ${Math.max(...R.runs.map((each) => each.round))}` : "live";
  } catch {
    badge.className = "live lost";
    badge.textContent = "connection lost";
  }
  setTimeout(poll, 2000, next);
}

let settled;
addEventListener("resize", () => { clearTimeout(settled); settled = setTimeout(refit, 120); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("beforeprint", () => forPaper(true));
addEventListener("afterprint", () => forPaper(false));
draw();
if (R.live) poll(null);
document.documentElement.dataset.ready = "yes";
