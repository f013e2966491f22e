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
    ...layout, ...PNG, height, autosize: false, showlegend: !chart.spec.bare, legend: { itemsizing: "constant" }, margin: { ...layout.margin, t: chart.spec.bare ? 120 : 76 },
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

// The timeline as it stands: labels, axis and marks of what is in sight, under the same heading as a chart.
async function saveTimeline() {
  const ratio = devicePixelRatio || 1, side = byId("labels").offsetWidth, top = 56, axis = byId("scroll").offsetTop;
  const canvas = el("canvas", { width: Math.round((side + view.width) * ratio), height: Math.round((top + axis + view.height) * ratio) });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.fillStyle = css("--card");
  pen.fillRect(0, 0, side + view.width, top + axis + view.height);
  pen.textBaseline = "middle";
  const write = (text, x, y, weight, colour, width) => {
    pen.font = `${weight} system-ui, sans-serif`;
    pen.fillStyle = css(colour);
    pen.fillText(text, x, y, width);
  };
  write("Timeline", 10, 18, "16px", "--ink");
  write(`${page.file}, ${byId("range").textContent}`, 10, 39, "12px", "--soft");
  pen.drawImage(byId("axis"), side, top, view.width, axis);
  pen.drawImage(byId("canvas"), side, top + axis, view.width, view.height);
  const scrolled = byId("scroll").scrollTop;
  for (const { text, middle } of labelsInSight(scrolled)) write(text, 10, top + axis + middle, "12px", "--ink", side - 16);
  save(fileName("timeline", "png"), await new Promise((resolve) => canvas.toBlob(resolve, "image/png")));
}

function labelsInSight(scrolled) {
  const words = (label) => [...label.children].map((one) => one.textContent.trim()).filter(Boolean).join("  ");
  return [...document.querySelectorAll("#labels .label")].map((label) => ({ text: words(label), middle: label.offsetTop + label.offsetHeight / 2 - scrolled }))
    .filter(({ middle }) => middle > 0 && middle < view.height);
}

function watchExport() {
  byId("timeline-png").addEventListener("click", saveTimeline);
}
