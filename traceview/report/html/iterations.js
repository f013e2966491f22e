// What each iteration was made of, as bars; the figures below them as a table.
const BARS = 300; // more than this, and areas say it better than bars

function iterationParts(looks) {
  const fields = { compute: "compute_ns", communication: "exposed_communication_ns", h2d: "exposed_h2d_ns", d2h: "exposed_d2h_ns" };
  return looks.filter((look) => look in fields || look.startsWith("idle_")).map((look) => ({
    look,
    ns: (one) => (look in fields ? one[fields[look]] : one.idle[look.slice(5)] ?? 0),
  }));
}

function iterationWord(look) {
  return look === "compute" || look.startsWith("idle_") ? lookWord(look) : "exposed " + lookWord(look);
}

function showIterations() {
  const found = page.iterations, each = byId("each");
  if (found.not_measured) return each.replaceChildren(el("p", { text: found.not_measured }));
  const aside = found.skipped ? `; ${found.skipped} set aside (${found.skipped_why})` : "";
  const chart = el("div", { class: "chart", id: "bars", role: "img", "aria-label": "Iterations, as bars of what each was made of; the table below has the figures" });
  each.replaceChildren(
    el("p", { class: "soft" }, `${count(found.count)} of ${found.range}${aside}. A click on a bar shows it in the timeline.`), chart, spreadsTable(found),
    el("details", {}, el("summary", { text: "Every iteration" }), eachTable(found)));
}

function spreadsTable(found) {
  const rows = Object.entries(found.spreads).filter(([, spread]) => spread.p95);
  return table("Iterations, spread", [
    ["per iteration", ([name]) => name.replace(/_ns$/, "").replaceAll("_", " ")], ["median", ([, spread]) => milliseconds(spread.median)],
    ["5%", ([, spread]) => milliseconds(spread.p5)], ["95%", ([, spread]) => milliseconds(spread.p95)],
  ], rows);
}

function eachTable(found) {
  const go = (one) => el("button", { type: "button", text: one.name, onclick: () => goTo({ start: one.start, end: one.end, rows: ["ruler"] }) });
  return table("Every iteration", [
    ["iteration", go], ["wall", (one) => milliseconds(one.wall_ns)], ["compute", (one) => milliseconds(one.compute_ns)],
    ["exposed h2d", (one) => milliseconds(one.exposed_h2d_ns)], ["exposed d2h", (one) => milliseconds(one.exposed_d2h_ns)],
    ["exposed communication", (one) => milliseconds(one.exposed_communication_ns)], ["idle", (one) => milliseconds(one.idle_ns)],
    ["blocked", (one) => milliseconds(one.blocked_ns)], ["kernels", (one) => count(one.kernel_count)],
  ], found.each);
}

// Plotly reads some tags in its texts: a name is no tag.
function plotlyText(name) {
  return name.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

async function drawIterations() {
  const chart = byId("bars");
  if (!chart) return;
  const { each } = page.iterations, bars = each.length <= BARS;
  const names = each.map((one) => plotlyText(one.name) + (one.skipped ? " (set aside)" : ""));
  const x = each.map((_, place) => place);
  const traces = iterationParts(page.looks).map(({ look, ns }) => {
    const y = each.map((one) => ns(one) / 1e6);
    const shape = { striped: "\\", hatched: "/", dotted: "." }[patternOf(look)] ?? "";
    const common = { x, y, name: iterationWord(look), text: names, hovertemplate: "%{text}: %{y:.3f} ms<extra>" + iterationWord(look) + "</extra>", textposition: "none" };
    return bars
      ? { ...common, type: "bar", marker: { color: css("--" + look), pattern: { shape, size: 5, solidity: 0.2, fillmode: "overlay", fgcolor: css("--card") } } }
      : { ...common, type: "scatter", mode: "lines", stackgroup: "all", line: { width: 0, color: css("--" + look) } };
  }).filter((trace) => trace.y.some((value) => value > 0));
  await Plotly.react(chart, traces, barLayout(names, x), { displayModeBar: false, responsive: true });
  chart.removeAllListeners?.("plotly_click");
  chart.on("plotly_click", ({ points }) => {
    const one = each[points[0].pointNumber ?? points[0].x];
    goTo({ start: one.start, end: one.end, rows: ["ruler"] });
  });
}

function barLayout(names, x) {
  const step = Math.max(1, Math.ceil(x.length / 24));
  const shown = x.filter((place) => place % step === 0);
  return {
    barmode: "stack", bargap: 0.25, margin: { l: 52, r: 8, t: 8, b: 40 }, showlegend: true,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: css("--soft") }, hoverlabel: { bgcolor: css("--card"), font: { color: css("--ink") } },
    xaxis: { tickvals: shown, ticktext: shown.map((place) => names[place].match(/-?\d+/)?.[0] ?? String(place)), gridcolor: css("--grid"), title: { text: "iteration" }, tickangle: 0, fixedrange: true },
    yaxis: { title: { text: "ms" }, gridcolor: css("--grid"), zerolinecolor: css("--line"), rangemode: "tozero", fixedrange: true },
  };
}
