// Any table as CSV and any chart as PNG: files that the browser saves, made here without a network.
// A spreadsheet runs a cell that begins so: a name that does gets an apostrophe in front.
const FORMULA = /^[=+\-@\t\r]/;

function csvCell(value) {
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = FORMULA.test(value) ? "'" + value : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csvText(columns, rows) {
  const lines = [columns.map(({ field }) => field), ...rows.map((row) => columns.map(({ value }) => value(row)))];
  return lines.map((cells) => cells.map(csvCell).join(",") + "\r\n").join("");
}

function saveCsv(caption, columns, rows) {
  // The mark at the front tells a spreadsheet that names are UTF-8.
  save(fileName(caption, "csv"), new Blob(["\ufeff", csvText(columns, rows)], { type: "text/csv" }));
}

// dual.idle_gaps_by_length.png: the capture, what it shows, and only characters that every file system takes.
function fileName(what, ending) {
  const stem = page.file.replace(/\.[A-Za-z0-9]+$/, "").replace(/[^A-Za-z0-9_-]+/g, "_").replace(/^_+|_+$/g, "").slice(0, 60);
  return `${stem || "capture"}.${fieldOf(what).slice(0, 60)}.${ending}`;
}

function save(name, blob) {
  const href = URL.createObjectURL(blob);
  const link = el("a", { href, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

const PNG = { width: 1000, height: 480, scale: 2 };

// The picture stands alone: heading and capture on top, legend inside, the page's own background.
async function savePng(chart) {
  const { traces, layout } = chart.spec.picture();
  const head = `${plotlyText(chart.spec.heading)}<br><span style="font-size:12px">${plotlyText(page.file)}</span>`;
  const height = Math.max(PNG.height, (layout.height ?? 0) + 120);
  const whole = {
    ...layout, ...PNG, height, autosize: false, showlegend: !chart.spec.bare, legend: {}, margin: { ...layout.margin, t: chart.spec.bare ? 120 : 76 },
    title: { text: head, x: 0.02, xanchor: "left", y: 1 - 26 / height, yanchor: "top", font: { size: 16, color: css("--ink") } },
    paper_bgcolor: css("--card"), plot_bgcolor: css("--card"),
  };
  const url = await Plotly.toImage({ data: traces, layout: whole }, { format: "png", ...PNG, height });
  save(fileName(chart.spec.heading, "png"), await blobOf(url));
}

// No fetch: the policy allows no connection, not even to a data: address.
async function blobOf(url) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (char) => char.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}
