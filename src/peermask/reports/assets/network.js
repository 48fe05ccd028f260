// The communication graph, and the agent that is picked.

function drawAgents() {
  const section = $("agents"), own = run();
  const beyond = own.agents.length > own.shown ? ` Details are there for the first ${own.shown} of ${own.agents.length} agents.` : "";
  heading(section, "Agents", `Colour is ${named(own.figure)}, size is retention, and the width of a link is what went over it. Pick an agent.${beyond}`, runSelect());
  const panel = el("div", { class: "card", id: "agent" });
  const below = own.masks ? el("div", { class: "card", id: "agent-layers" }) : null; // what would else be a gap
  section.append(el("div", { class: "two" }, el("div", { class: "stack" }, el("div", { class: "card" }, network(own), scale(own)), below), panel));
  drawAgent();
}

function accuracyRange(own) {
  const known = own.agents.map((agent) => agent.accuracy).filter((value) => value != null);
  return known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
}

const within = (value, [low, high]) => (high > low ? (value - low) / (high - low) : 0.5);

function network(own) {
  const { links, positions, sent } = own.graph, range = accuracyRange(own);
  const most = Math.max(1, ...links.map(([a, b]) => sent[a] + sent[b]));
  const crowd = Math.min(1, 4.2 / Math.sqrt(own.agents.length));
  const svg = el("svg", { class: "network", viewBox: "-1.16 -1.16 2.32 2.32", role: "group", "aria-label": "communication graph" });
  for (const [a, b] of links) {
    const [[x1, y1], [x2, y2]] = [positions[a], positions[b]];
    const width = (0.004 + 0.022 * (sent[a] + sent[b]) / most) * crowd;
    const near = a === state.agent || b === state.agent;
    svg.append(el("line", { x1, y1, x2, y2, "stroke-width": width, class: near ? "near" : "" },
      el("title", {}, `${a} – ${b}: ${bytes(sent[a] + sent[b])}`)));
  }
  own.agents.forEach((agent, i) => {
    const [x, y] = positions[i], radius = (0.045 + 0.085 * Math.sqrt(agent.retention)) * crowd;
    const share = agent.accuracy == null ? 0 : within(agent.accuracy, range);
    const pick = () => { if (i < own.shown) { state.agent = i; redraw(drawAgents, drawMasks); } };
    svg.append(el("g", {
      class: i === state.agent ? "picked" : "", tabindex: 0, role: "button", "data-agent": i,
      "aria-label": `agent ${agent.agent}, ${named(own.figure)} ${shown(own.figure, agent.accuracy)}`, onclick: pick,
      onkeydown: (event) => { if (["Enter", " "].includes(event.key)) { event.preventDefault(); pick(); } },
    },
    el("circle", { cx: x, cy: y, r: radius, fill: rgb(ramp(share)) }),
    el("text", { x, y, fill: share > 0.55 ? "#111" : "#fff", style: crowd < 0.6 ? "display:none" : null }, agent.agent),
    el("title", {}, `agent ${agent.agent}: ${shown(own.figure, agent.accuracy)}${among(own, agent)}, retention ${agent.retention}`)));
  });
  return svg;
}

const among = (own, agent) => (own.task === "classification"
  ? ` (answers among ${other(own)} labels: ${percent(agent[`accuracy_${other(own)}`])})` : "");

function scale(own) {
  const [low, high] = accuracyRange(own), line = el("i");
  line.style.background = `linear-gradient(90deg, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map((s) => rgb(ramp(s))).join(",")})`;
  return el("div", { class: "scale" }, el("span", {}, shown(own.figure, low)), line, el("span", {}, shown(own.figure, high)));
}

function drawAgent() {
  const own = run(), agent = own.agents[state.agent], masks = own.masks;
  const labels = agent.labels.map((label) => own.classes[label] ?? label).join(", ");
  const panel = $("agent");
  panel.replaceChildren(
    el("h3", {}, `agent ${agent.agent}`),
    el("dl", { class: "facts" }, [
      ...reached(own, agent, labels), ["retention", agent.retention],
      ["density", percent(agent.density)], ["links", agent.links], ["sent", bytes(agent.sent)],
    ].flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, value)])));
  const box = el("div", { class: "chart small", id: "chart-agent" });
  panel.append(el("h3", {}, `test ${named(own.figure)} by round`), box);
  const measured = own.curves.measures[`test_${own.figure}`];
  const average = own.curves.rounds.map((_, i) => mean(measured.map((values) => values[i])));
  plot(box, [[own.curves.rounds, average, measured[state.agent]]], [
    { label: "mean of agents", stroke: colour("muted"), width: 1.5, dash: [4, 4] },
    { label: "this agent", stroke: colour("accent"), width: 2 },
  ], { y: (v) => shown(own.figure, v), yTick: isShare(own.figure) ? percentTick : figure, title: axis(own.figure), height: 190, x: "rounds", logX: false, logY: false });
  const taken = own.confusion[agent.agent];
  if (taken) panel.append(...confusion(own, taken));
  if (!masks) return;
  const [density, ...overlap] = agentMask(own, agent);
  $("agent-layers").replaceChildren(el("h3", {}, `agent ${agent.agent}: density per layer`), density, ...overlap);
}

/** Which labels an agent took for which, darker where more often. */
function confusion(own, taken) {
  const labels = [...new Set(taken.flatMap(([label, answer]) => [label, answer]))].sort((a, b) => a - b);
  const count = new Map(taken.map(([label, answer, samples]) => [`${label} ${answer}`, samples]));
  const name = (label) => own.classes[label] ?? label;
  const row = (label) => {
    const counts = labels.map((answer) => count.get(`${label} ${answer}`) ?? 0), all = counts.reduce((a, b) => a + b, 0);
    return el("tr", {}, el("th", { class: "text" }, name(label)), counts.map((samples, i) => el("td", {
      title: `${samples} of ${all} ${name(label)} taken for ${name(labels[i])}`,
      style: `background:color-mix(in srgb, var(--${labels[i] === label ? "accent" : "s2"}) ${Math.round((60 * samples) / (all || 1))}%, transparent)`,
    }, samples)));
  };
  return [el("h3", {}, "labels (down) and answers (across), test samples"),
    el("div", { class: "scroll" }, el("table", { class: "data", id: "confusion" },
      el("thead", {}, el("tr", {}, el("th", {}), labels.map((label) => el("th", {}, name(label))))),
      el("tbody", {}, labels.map(row))))];
}

/** What an agent reached, by task. */
function reached(own, agent, labels) {
  if (own.task !== "classification") return own.figures.map((name) => [named(name), shown(name, agent.figures[name])]);
  return [["accuracy", percent(agent.accuracy)], [`among ${other(own)} labels`, percent(agent[`accuracy_${other(own)}`])],
    ["weighted by labels", percent(agent.accuracy_weighted)], ["macro F1", percent(agent.figures.macro_f1)], ["labels", labels]];
}

function agentMask(own, agent) {
  const masks = own.masks, last = masks.rounds.length - 1, kept = masks.kept[last];
  const density = masks.layers.map((layer, l) => {
    const share = kept[state.agent][l] / layer.size;
    return [layer.title ?? layer.name, share, percent(share)];
  });
  const near = own.graph.links.filter((link) => link.includes(agent.agent))
    .map(([a, b]) => (a === agent.agent ? b : a)).filter((other) => other < own.shown);
  const agreement = near.map((other) => {
    const share = masks.overlap[last][state.agent][other] / 1000;
    return [`agent ${other}`, share, percent(share), chance(masks.layers, kept[state.agent], kept[other])];
  });
  return [
    bars(density),
    el("h3", { title: "shared entries among those that either keeps" }, "overlap with its neighbours' masks"),
    agreement.length ? bars(agreement, "var(--s2)") : el("p", { class: "note" }, "It has no neighbours."),
    el("p", { class: "note" }, "The mark is what two masks of these densities share by chance."),
  ];
}

/** Expected overlap of two masks that keep as many entries of each layer, picked blindly. */
function chance(layers, one, other) {
  const both = layers.reduce((sum, layer, l) => sum + one[l] * other[l] / layer.size, 0);
  const all = [...one, ...other].reduce((sum, count) => sum + count, 0);
  return all > both ? both / (all - both) : 1;
}
