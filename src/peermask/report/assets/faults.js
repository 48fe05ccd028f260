// Who was missing when, if agents were on a real network.

function drawFaults() {
  const section = $("faults"), own = run(), faults = own.faults;
  section.hidden = !R.runs.some((each) => each.faults);
  if (section.hidden) return;
  heading(section, "Faults", "A mark is a round in which neighbours did not hear an agent; the darker, the more of them.", runSelect());
  if (!faults || !faults.count) {
    section.append(el("p", { class: "note" }, "Nobody was missing in this run."));
    return;
  }
  const canvas = el("canvas", { id: "fault-map", class: "pixels", role: "img", "aria-label": "missing agents by round" });
  const reasons = faults.reasons.map(([why, count]) => `${count} times ${why}`).join(", ");
  const instead = `an older message took its place ${faults.replaced} times, ${faults.count - faults.replaced} times it was left out`;
  section.append(el("div", { class: "card" }, el("h3", {}, `agents (down) by round (across): ${faults.count} messages missing`),
    canvas, el("p", { class: "note" }, `${reasons}; ${instead}.`)));
  paintFaults(canvas, own);
}

function paintFaults(canvas, own) {
  const agents = own.agents.length, last = Math.max(own.round, ...own.faults.rows.map((row) => row[0]), 1);
  const width = Math.max(200, canvas.parentElement.clientWidth - 40), tall = Math.max(4, Math.min(16, 480 / agents));
  const columns = Math.min(last, width), missing = new Map();
  for (const [round, agent, absent] of own.faults.rows) {
    const place = `${absent},${Math.floor((round - 1) * columns / last)}`;
    missing.set(place, [...(missing.get(place) ?? []), [round, agent]]);
  }
  canvas.width = width;
  canvas.height = tall * agents;
  const paint = canvas.getContext("2d"), most = Math.max(...[...missing.values()].map((list) => list.length));
  paint.fillStyle = colour("soft");
  paint.fillRect(0, 0, canvas.width, canvas.height);
  for (const [place, list] of missing) {
    const [absent, column] = place.split(",").map(Number);
    paint.fillStyle = mixed(colour("negative"), 0.35 + 0.65 * list.length / most);
    paint.fillRect(column * width / columns, absent * tall + 1, Math.max(1, width / columns - 0.5), tall - 2);
  }
  canvas.onmousemove = (event) => {
    const box = canvas.getBoundingClientRect();
    const absent = Math.floor((event.clientY - box.top) / (box.height / agents));
    const list = missing.get(`${absent},${Math.floor((event.clientX - box.left) / box.width * columns)}`);
    tip(event, list ? `agent ${absent} in round ${list[0][0]}: not heard by ${list.map((each) => each[1]).join(", ")}` : "");
  };
  canvas.onmouseleave = (event) => tip(event, "");
}
