// Where the bytes went, against plainer ways of sending the same.

function drawBytes() {
  const section = $("bytes"), speaking = R.runs.filter((each) => each.traffic.messages && (!R.sweep || each === run()));
  heading(section, "Bytes", speaking.length
    ? "What the codec sent over all links of all agents, and what the same messages would cost at 1 and at 32 bits per weight." : "No agent sent anything.", R.sweep ? runSelect() : null);
  if (!speaking.length) return;
  const cards = speaking.map((each) => {
    const { keyframes, deltas, headers, bitmap, floats, messages } = each.traffic, sent = keyframes + deltas + headers;
    const long = (value) => value / Math.max(sent, bitmap, floats); // linear: a bar half as long is half as many bytes
    const times = (value) => `${bytes(value)} (${+(value / sent).toPrecision(2)} ×)`;
    return el("div", { class: "card" },
      el("h3", {}, `${each.label}: ${messages.toLocaleString("en")} messages`),
      split([["s0", "deltas", deltas], ["s1", "keyframes", keyframes], ["s7", "headers", headers]], sent),
      bars([["sent", long(sent), bytes(sent)], ["1 bit per weight", long(bitmap), times(bitmap)],
        ["32 bits per weight", long(floats), times(floats)]], "var(--s7)"));
  });
  const box = el("div", { class: "chart", id: "chart-bytes" });
  section.append(el("div", { class: speaking.length > 1 ? "two" : "" }, cards), el("div", { class: "card", style: "margin-top:20px" }, el("h3", {}, "bytes of a message, mean over agents, by round"), box));
  plot(box, speaking.map((each) => [each.traffic.rounds, each.traffic.per_message]),
    speaking.map((each) => ({ label: each.label, stroke: seriesColour(R.runs.indexOf(each)), dash: seriesDash(R.runs.indexOf(each)), width: 2 })),
    { y: bytes, title: "bytes of a message", height: 260, x: "rounds", logX: false, logY: true });
}

function split(parts, whole) {
  const bar = el("div", { class: "bar", style: "height:22px;margin:4px 0 8px" });
  for (const [tint, name, value] of parts) {
    const part = el("i", { title: `${name}: ${bytes(value)}` });
    part.style.width = `${100 * value / whole}%`;
    part.style.background = `var(--${tint})`;
    bar.append(part);
  }
  return el("div", { style: "margin-bottom:14px" }, bar,
    el("div", {}, parts.map(([tint, name, value]) => keyed(tint, `${name} ${bytes(value)} (${percent(value / whole)})`))));
}
