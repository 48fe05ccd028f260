// The page as a whole: what is on top, the theme, paper, and data that still grows.

function drawTop() {
  $("title").textContent = R.title;
  const first = run();
  const many = R.runs.length > 1 ? `${R.runs.length} runs of ` : "";
  $("subtitle").textContent = `${many}${first.agents.length} agents on ${first.dataset}, `
    + `${first.weights.toLocaleString("en")} masked weights, round ${first.round} of ${first.rounds} (${first.status})`;
  const worst = first.agents.reduce((low, agent) => ((agent.accuracy ?? Infinity) < (low.accuracy ?? Infinity) ? agent : low));
  const sent = first.agents.reduce((sum, agent) => sum + agent.sent, 0);
  const beside = percent(mean(first.agents.map((agent) => agent[`accuracy_${other(first)}`])));
  const note = first.task === "classification" ? `answers among ${first.readout} labels; among ${other(first)} labels ${beside}` : null;
  const figures = [[shown(first.figure, first.accuracy), `mean ${named(first.figure)}, ${first.algorithm}`, note], [shown(first.figure, worst.accuracy), `worst agent (${worst.agent})`],
    [bytes(sent), "sent by all agents"], [percent(mean(first.agents.map((agent) => agent.density))), "mean density"], [duration(first.seconds), "of computing"]];
  const [headline, ...versus] = gains();
  if (headline) figures.unshift([headline[0], headline[1], versus.map(([points, against]) => `${points} ${against}`).join("; ")]);
  $("summary").replaceChildren(...figures.map(([value, name, title]) => el("div", { class: "figure", title }, el("b", {}, value), el("span", {}, name))));
  const sections = [...document.querySelectorAll("main > section[data-name]")].filter((section) => !section.hidden);
  $("nav").replaceChildren(...sections.map((section) => el("a", { href: `#${section.id}` }, section.dataset.name)));
}

/** What the first curve gains over each other in the end, in points of mean accuracy, or in the figure that counts. */
function gains() {
  const last = (values) => values.filter((value) => value != null).at(-1);
  const [[label, own], ...others] = R.series.map((each) => [each.label, last(each.measures[`test_${run().figure}`].mean)]);
  return others.filter(([, value]) => own != null && value != null).map(([name, value]) => {
    const share = isShare(run().figure), points = (share ? 100 : 1) * (own - value);
    return [`${points < 0 ? "−" : "+"}${Math.abs(points).toFixed(share ? 1 : 3)} ${share ? "points" : named(run().figure)}`, `${label} against ${name}`];
  });
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
  for (const part of [drawCurves, drawAgents, drawMasks, drawBytes, drawFaults, drawTables, drawConfig, drawTop]) part();
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
