// Masks as pictures, at every round that was kept.

function drawMasks() {
  const section = $("masks"), own = run(), masks = own.masks;
  section.hidden = !masks;
  if (!masks) return;
  if (state.round < 0 || state.round >= masks.rounds.length) state.round = masks.rounds.length - 1;
  const label = el("output", { id: "mask-round" }, `round ${masks.rounds[state.round]}`);
  const slider = el("input", {
    type: "range", min: 0, max: masks.rounds.length - 1, value: state.round, "aria-label": "round of the masks", id: "slider",
    oninput: (event) => { state.round = +event.target.value; label.textContent = `round ${masks.rounds[state.round]}`; paintMasks(); },
  });
  heading(section, "Masks", "What each agent keeps of the weights all agents share, at the rounds that were saved.",
    el("label", {}, slider, label),
    select("agent", own.agents.slice(0, own.shown).map((agent, i) => [i, agent.agent]), state.agent,
      (value) => { state.agent = +value; redraw(drawAgents, drawMasks); }), runSelect());
  const { name, start, filters } = masks.first;
  const layer = masks.layers.find((each) => each.name === name);
  const part = filters < layer.filters ? `, filters ${start} to ${start + filters - 1} of ${layer.filters}` : "";
  const key = masks.first.signs
    ? [["kept", "kept, w > 0"], ["negative", "kept, w < 0"], ["dropped", "dropped"]] : [["kept", "kept"], ["dropped", "dropped"]];
  section.append(
    el("div", { class: "card" }, el("h3", {}, `${layer.title ?? "first layer"} (${name})${part}: a column is a filter, a row an input channel`),
      el("div", { class: "scroll" }, el("canvas", { class: "pixels", id: "filters", role: "img", "aria-label": "first-layer filters" })),
      el("p", {}, key.map(([tint, text]) => keyed(tint, text)))),
    el("div", { class: "two", style: "margin-top:20px" },
      el("div", { class: "card" }, el("h3", {}, "live filters per layer"), el("div", { id: "live-filters" })),
      el("div", { class: "card" }, el("h3", {}, "overlap of masks between agents"),
        el("canvas", { id: "overlap", role: "img", "aria-label": "overlap of the masks of every two agents", style: "max-width:100%" }), el("div", { id: "overlap-scale" }))));
  paintMasks();
}

function keyed(tint, text) {
  const swatch = el("i");
  swatch.style.background = `var(--${tint})`;
  return el("span", { class: "key" }, swatch, text);
}

function paintMasks() {
  paintFilters();
  paintLive();
  paintOverlap();
}

/** As in the paper: kernels side by side, filters across, input channels down; wrapped where the page ends. */
function paintFilters() {
  const { first, rounds } = run().masks, [channels, height, width] = first.kernel;
  const canvas = $("filters"), room = canvas.parentElement.clientWidth;
  const agents = run().shown, each = channels * height * width, row = Math.ceil(first.filters * each / 8);
  const packed = unpack(first.bits[state.round]).subarray(state.agent * row, (state.agent + 1) * row);
  const signs = first.signs && unpack(first.signs);
  const pixel = Math.max(4, Math.min(9, Math.floor(room / (Math.min(first.filters, 32) * (width + 1)))));
  const across = Math.max(1, Math.min(first.filters, Math.floor(room / (pixel * (width + 1)))));
  const bands = Math.ceil(first.filters / across), tall = channels * (height + 1) + 2;
  const ratio = Math.min(3, devicePixelRatio || 1);
  canvas.width = across * (width + 1) * pixel * ratio;
  canvas.height = (bands * tall - 2) * pixel * ratio;
  canvas.style.width = `${canvas.width / ratio}px`;
  const paint = canvas.getContext("2d");
  paint.scale(pixel * ratio, pixel * ratio);
  const tints = { on: colour("kept"), minus: colour("negative"), off: colour("dropped") };
  for (let f = 0; f < first.filters; f++) {
    const left = (f % across) * (width + 1), top = Math.floor(f / across) * tall;
    for (let p = 0; p < each; p++) {
      const place = f * each + p, x = p % width, y = Math.floor(p / width) % height, c = Math.floor(p / (width * height));
      paint.fillStyle = !bit(packed, place) ? tints.off : signs && !bit(signs, place) ? tints.minus : tints.on;
      paint.fillRect(left + x, top + c * (height + 1) + y, 1, 1);
    }
  }
  canvas.dataset.round = rounds[state.round];
  canvas.dataset.agents = agents;
}

function paintLive() {
  const masks = run().masks, live = masks.live[state.round];
  const rows = masks.layers.map((layer, l) => {
    const average = mean(live.map((agent) => agent[l]));
    return [layer.title ?? layer.name, live[state.agent][l] / layer.filters, `${live[state.agent][l]} of ${layer.filters}`, average / layer.filters];
  });
  $("live-filters").replaceChildren(bars(rows), el("p", { class: "note" }, "The mark is the mean of all agents."));
}

function paintOverlap() {
  const masks = run().masks, overlap = masks.overlap[state.round], count = overlap.length, canvas = $("overlap");
  const margin = 24; // for the agents' numbers
  const cell = Math.max(3, Math.min(32, Math.floor(Math.min(canvas.parentElement.clientWidth - 8 - margin, 420) / count)));
  canvas.width = canvas.height = cell * count + margin;
  const paint = canvas.getContext("2d"), every = Math.ceil(18 / cell);
  paint.fillStyle = colour("muted");
  paint.font = "11px system-ui, sans-serif";
  paint.textBaseline = "middle";
  paint.textAlign = "center";
  for (let i = 0; i < count; i += every) {
    paint.fillText(run().agents[i].agent, margin + (i + 0.5) * cell, margin / 2);
    paint.fillText(run().agents[i].agent, margin / 2, margin + (i + 0.5) * cell);
  }
  paint.translate(margin, margin);
  const others = overlap.flatMap((row, i) => row.filter((_, j) => i !== j)), range = [Math.min(...others, 1000), Math.max(...others, 0)];
  overlap.forEach((row, i) => row.forEach((value, j) => {
    paint.fillStyle = i === j ? colour("soft") : rgb(ramp(within(value, range)));
    paint.fillRect(j * cell, i * cell, cell - (cell > 6 ? 1 : 0), cell - (cell > 6 ? 1 : 0));
  }));
  const at = (event) => {
    const box = canvas.getBoundingClientRect(), scale = canvas.width / box.width;
    return [event.clientY - box.top, event.clientX - box.left].map((way) => Math.floor((way * scale - margin) / cell));
  };
  canvas.onmousemove = (event) => {
    const [i, j] = at(event);
    tip(event, overlap[i]?.[j] == null ? "" : `agents ${i} and ${j}: ${percent(overlap[i][j] / 1000)}`);
  };
  canvas.onmouseleave = (event) => tip(event, "");
  const line = el("i");
  line.style.background = `linear-gradient(90deg, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map((s) => rgb(ramp(s))).join(",")})`;
  $("overlap-scale").replaceChildren(count > 1
    ? el("div", { class: "scale" }, el("span", {}, percent(range[0] / 1000)), line, el("span", {}, percent(range[1] / 1000)),
      el("span", {}, "shared, of what either keeps")) : "");
}
