// Plots as files: what is on the screen as PNG, and drawn again as SVG, which paper likes better.

function saveButtons(id, name) {
  return el("span", { class: "save" }, [["PNG", savePng], ["SVG", saveSvg]].map(([kind, save]) => el("button", {
    type: "button", "data-save": `${id}-${kind}`, "aria-label": `save ${name} as ${kind}`, onclick: () => save(plots.get(id), name),
  }, kind)));
}

function download(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function savePng(u, name) {
  const sheet = el("canvas", { width: u.ctx.canvas.width, height: u.ctx.canvas.height }), paint = sheet.getContext("2d");
  paint.fillStyle = colour("card");
  paint.fillRect(0, 0, sheet.width, sheet.height);
  paint.drawImage(u.ctx.canvas, 0, 0);
  sheet.toBlob((blob) => download(blob, `${name}.png`));
}

const saveSvg = (u, name) => download(new Blob([svgOf(u, name)], { type: "image/svg+xml" }), `${name}.svg`);

/** The lines, bands, axes and names of a plot. */
function svgOf(u, name) {
  const ratio = devicePixelRatio || 1, [left, top, width, height] = ["left", "top", "width", "height"].map((key) => u.bbox[key] / ratio);
  const shown = u.series.map((series, i) => [series, i]).filter(([series, i]) => i && series.show && series.class !== "edge");
  const full = top + height + 64 + 18 * shown.length;
  const svg = el("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${u.width} ${full}`, width: u.width, height: full,
    "font-family": "sans-serif", "font-size": 12, fill: colour("ink") });
  svg.append(el("title", {}, name), el("rect", { width: u.width, height: full, fill: colour("card") }));
  u.axes.forEach((axis, i) => {
    const across = i === 0, splits = axis._splits ?? [], texts = axis._values ?? [];
    splits.forEach((value, k) => {
      const at = u.valToPos(value, across ? "x" : "y");
      if (value == null || !texts[k] || at < -1 || at > (across ? width : height) + 1) return;
      const [x1, y1, x2, y2] = across ? [left + at, top, left + at, top + height] : [left, top + at, left + width, top + at];
      svg.append(el("line", { x1, y1, x2, y2, stroke: colour("line") }));
      svg.append(el("text", across ? { x: left + at, y: top + height + 18, "text-anchor": "middle" }
        : { x: left - 6, y: top + at + 4, "text-anchor": "end" }, texts[k]));
    });
  });
  svg.append(el("text", { x: left + width / 2, y: top + height + 38, "text-anchor": "middle" }, u.axes[0].label),
    el("text", { x: 12, y: top + height / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${top + height / 2})` }, u.axes[1].label));
  const pointsOf = (i) => u.data[0].map((x, k) => [x, u.data[i][k]]).filter(([, y]) => y != null)
    .map(([x, y]) => `${(left + u.valToPos(x, "x")).toFixed(1)},${(top + u.valToPos(y, "y")).toFixed(1)}`);
  for (const { series: [upper, lower], fill } of (u.bands ?? []).filter(({ series }) => series.every((i) => u.series[i].show))) {
    const shade = typeof fill === "function" ? fill(u, upper) : fill;
    svg.append(el("polygon", { points: [...pointsOf(upper), ...pointsOf(lower).reverse()].join(" "), fill: shade }));
  }
  shown.forEach(([series, i], place) => {
    const stroke = typeof series._stroke === "string" ? series._stroke : series.stroke(u, i);
    const points = pointsOf(i);
    const y = top + height + 60 + 18 * place;
    svg.append(el("polyline", { points: points.join(" "), fill: "none", stroke, "stroke-width": series.width }),
      el("rect", { x: left, y: y - 9, width: 10, height: 10, fill: stroke }), el("text", { x: left + 16, y }, series.label));
  });
  return new XMLSerializer().serializeToString(svg);
}
