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
  const left = tall >= 10 ? 30 : 0, room = width - left, columns = Math.min(last, room), missing = new Map();
  for (const [round, agent, absent] of own.faults.rows) {
    const place = `${absent},${Math.floor((round - 1) * columns / last)}`;
    missing.set(place, [...(missing.get(place) ?? []), [round, agent]]);
  }
  canvas.width = width;
  canvas.height = tall * agents;
  const paint = canvas.getContext("2d"), most = Math.max(...[...missing.values()].map((list) => list.length));
  paint.fillStyle = colour("soft");
  paint.fillRect(left, 0, room, canvas.height);
  paint.fillStyle = colour("muted");
  paint.font = "11px system-ui, sans-serif";
  if (left) own.agents.forEach((agent, i) => paint.fillText(agent.agent, 2, i * tall + tall / 2 + 4));
  for (const [place, list] of missing) {
    const [absent, column] = place.split(",").map(Number);
    paint.fillStyle = mixed(colour("negative"), 0.35 + 0.65 * list.length / most);
    const from = Math.floor(column * room / columns), to = Math.floor((column + 1) * room / columns);
    paint.fillRect(left + from, absent * tall + 1, to - from, tall - 2);
  }
  canvas.onmousemove = (event) => {
    const box = canvas.getBoundingClientRect();
    const absent = Math.floor((event.clientY - box.top) / (box.height / agents));
    const list = missing.get(`${absent},${Math.floor((event.clientX - box.left - left) / (box.width - left) * columns)}`);
    tip(event, list ? `agent ${absent} in round ${list[0][0]}: not heard by ${list.map((each) => each[1]).join(", ")}` : "");
  };
  canvas.onmouseleave = (event) => tip(event, "");
}
