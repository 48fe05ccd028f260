"use strict";
// Small helpers: elements, numbers for people, colours of the theme.

let R = JSON.parse(document.getElementById("data").textContent);
const state = {
  run: 0, agent: 0, round: -1, x: "rounds", logX: false, logY: false, band: R.series.length > 4 ? "none" : "p", every: false,
  accuracy: `test_${R.runs[0]?.figure ?? "accuracy"}`, loss: "train_loss", hidden: new Set(), paper: false,
};

const $ = (id) => document.getElementById(id);

/** An element with attributes and children; text is always text, never markup. */
function el(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "line", "circle", "text", "title", "rect", "polyline", "polygon"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child != null).map((c) => (c instanceof Node ? c : String(c))));
  return made;
}

function bytes(count) {
  if (count == null) return "–";
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(count) < 999.5 || unit === "TB") return `${unit === "B" ? Math.round(count) : +count.toPrecision(3)} ${unit}`;
    count /= 1000;
  }
}

function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 60) return `${+seconds.toPrecision(3)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const percent = (share, digits = 1) => (share == null ? "–" : `${(100 * share).toFixed(digits)} %`);
const figure = (value) => (value == null ? "–" : String(+value.toPrecision(4)));
const NAMES = { f1: "F1", macro_f1: "macro F1", average_precision: "average precision", r2: "R²", mae: "MAE" };
const named = (name) => NAMES[name] ?? name.replaceAll("_", " ");
const isShare = (name) => /^(accuracy|f1|macro_f1|average_precision)/.test(name);
const shown = (name, value) => (isShare(name) ? percent(value) : figure(value)); // the figure of an agent, by its name
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const seriesColour = (index) => colour(`s${index % 8}`);
const seriesDash = (index) => (index < 8 ? null : [6, 4]); // the colours begin again
const other = (each) => (each.readout === "own" ? "all" : "own"); // the readout that does not count
const run = () => R.runs[Math.min(state.run, R.runs.length - 1)];
const mean = (values) => {
  const known = values.filter((value) => value != null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};

// Cividis: reads the same with any colour vision, and in grey.
const RAMP = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
function ramp(share) {
  const place = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(place), RAMP.length - 2);
  return RAMP[low].map((value, i) => Math.round(value + (RAMP[low + 1][i] - value) * (place - low)));
}
const rgb = (parts) => `rgb(${parts.join(",")})`;

function select(label, options, value, change) {
  const made = el("select", { onchange: (event) => change(event.target.value), "aria-label": label });
  for (const [key, text] of options) made.append(el("option", { value: key, selected: String(key) === String(value) }, text));
  return el("label", {}, label, made);
}

function segments(label, options, value, change) {
  return el("span", { class: "segments", role: "group", "aria-label": label },
    options.map(([key, text]) => el("button", {
      type: "button", "aria-pressed": String(key === value), "data-value": key, onclick: () => change(key),
    }, text)));
}

function check(label, value, change) {
  return el("label", {}, el("input", { type: "checkbox", checked: value, onchange: (e) => change(e.target.checked) }), label);
}

/** Draw some parts again; the control that was pressed is another element now, and keeps the focus. */
function redraw(...parts) {
  const key = (each) => [each.closest("section")?.id, each.tagName, each.type, each.getAttribute("aria-label"), each.dataset.value,
    each.dataset.agent, each.parentElement?.tagName === "LABEL" ? each.parentElement.textContent : each.textContent].join("|");
  const held = document.activeElement, before = held && held !== document.body ? key(held) : null;
  for (const part of parts) part();
  if (before == null || document.contains(held)) return;
  const same = [...document.querySelectorAll("button, select, input, [tabindex]")].find((each) => key(each) === before);
  same?.focus({ preventScroll: true });
}

function runSelect() {
  if (R.runs.length < 2) return null;
  return select("run", R.runs.map((each, i) => [i, each.label]), state.run, (value) => {
    state.run = +value;
    state.agent = Math.min(state.agent, run().shown - 1);
    state.round = -1;
    redraw(draw);
  });
}

function heading(section, title, lead, ...controls) {
  section.replaceChildren(el("div", { class: "head" }, el("h2", {}, title)), lead ? el("p", { class: "lead" }, lead) : "");
  const shown = controls.filter(Boolean);
  if (shown.length) section.append(el("div", { class: "controls" }, shown));
}

function tip(event, text) {
  const box = $("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = `${Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8)}px`;
}

/** Horizontal bars: [name, share, text, mark], the mark being a second share to compare with. */
function bars(rows, tint) {
  const box = el("div", { class: "bars" });
  for (const [name, share, text, mark] of rows) {
    const fill = el("i");
    fill.style.width = share > 0 ? `max(2px, ${100 * Math.min(1, share)}%)` : 0; // the least bar can still be seen
    fill.style.background = tint ?? "var(--s0)";
    const bar = el("div", { class: "bar" }, fill);
    if (mark != null) {
      const line = el("u");
      line.style.left = `calc(${100 * Math.min(1, mark)}% - 1px)`;
      bar.append(line);
    }
    box.append(el("span", { class: "name", title: name }, name), bar, el("span", { class: "num" }, text));
  }
  return box;
}

function unpack(text) {
  const raw = atob(text);
  return Uint8Array.from(raw, (character) => character.charCodeAt(0));
}
const bit = (packed, place) => (packed[place >> 3] >> (7 - (place & 7))) & 1;
