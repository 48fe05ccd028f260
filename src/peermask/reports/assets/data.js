// What agents learn from: samples, labels, and what is odd about them.

function drawData() {
  const section = $("data-seen"), own = run(), seen = own.data;
  const { shared, leaked } = seen.duplicates ?? {};
  const facts = [
    shared == null ? null : `Inputs that several agents train on: ${shared}.`,
    leaked == null ? null : `Test samples that are also trained on: ${leaked}${leaked ? "; results look too good" : ""}.`,
    seen.counts.length ? `Classes that no agent trains on: ${seen.missing.length}${seen.missing.length ? ` (${seen.missing.join(", ")})` : ""}.` : null];
  heading(section, "Data", facts.filter(Boolean).join(" "), runSelect());
  const classes = seen.counts.length ? own.classes : [], most = Math.max(1, ...seen.counts.flatMap((counts) => Object.values(counts)));
  const field = (count) => {
    const made = el("td", { class: "field" }, count ?? "");
    if (count) {
      made.style.background = rgb(ramp(count / most));
      made.style.color = count / most > 0.55 ? "#111" : "#fff";
    }
    return made;
  };
  section.append(el("div", { class: "card" }, el("h3", {}, classes.length ? "samples, and training samples by class" : "samples"),
    el("div", { class: "scroll" }, el("table", { class: "data map narrow", id: "samples" },
      el("thead", {}, el("tr", {}, ["agent", "train", "validation", "test", ...classes].map((name) => el("th", {}, name)))),
      el("tbody", {}, seen.samples.map((row, i) => el("tr", {}, el("th", {}, own.agents[i].agent), row.map((count) => el("td", {}, count)),
        classes.map((_, label) => field(seen.counts[i][label])))))))));
}
