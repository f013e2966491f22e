// What happened between two moments. Exact where the page holds every event; elsewhere between the nearest borders of bins.
const measure = { points: [], moving: false, done: false, result: null };

// One press sets one end at the pointer, the next the other; without a pointer, what is selected, lit or in sight is measured.
function measureHere() {
  if (measure.done) clearMeasure();
  if (measure.moving) {
    measure.points[1] = Math.round(hands.x ?? measure.points[1] ?? view.to);
    return finishMeasure();
  }
  if (hands.x === null) {
    const { hit } = selected, { lit } = view;
    measure.points = hit ? [hit.marks.start[hit.i], hit.marks.end[hit.i]] : lit ? [lit.start, lit.end] : [view.from, view.to];
    return finishMeasure();
  }
  Object.assign(measure, { points: [Math.round(hands.x)], moving: true });
  showPanel(el("p", {}, `Measuring from ${moment(measure.points[0])}: press m at the other end, Esc to leave it.`));
  schedule();
}

function followMeasure(at) {
  if (!measure.moving) return;
  measure.points[1] = Math.round(at);
  schedule();
}

async function finishMeasure() {
  const [from, to] = measure.points.map((at) => Math.min(Math.max(Math.round(at), 0), page.timeline.span[1])).sort((a, b) => a - b);
  Object.assign(measure, { points: [from, to], moving: false, done: true });
  schedule();
  showMeasured(await measured(from, to));
}

function clearMeasure() {
  if (!measure.points.length) return;
  Object.assign(measure, { points: [], moving: false, done: false });
  if (!selected.hit) showHint();
  schedule();
}

// {from, to, exact, devices: [{id, compute, communication, copies, hidden, idle, kernels, copy_count, causes}]}
async function measured(from, to) {
  if (page.live) return measuredLive(from, to);
  const groups = board.groups.filter((group) => group.rows.some((row) => row.kind === "overlap"));
  const lanes = groups.flatMap((group) => group.rows).filter((row) => ["overlap", "idle", "stream"].includes(row.kind)).flatMap((row) => row.lanes);
  if (inFull(lanes, from, to)) return { from, to, exact: true, devices: groups.map((group) => countedIn(group, from, to)) };
  return tallied(from, to);
}

function pieces(marks, from, to, test = () => true) {
  const found = [];
  for (let i = above(marks.reach, from); i < marks.n && marks.start[i] < to; i++)
    if (test(i) && marks.end[i] > from) found.push([Math.max(from, marks.start[i]), Math.min(to, marks.end[i])]);
  return found;
}

// Pieces in order of their starts, merged where they touch.
function united(found) {
  const merged = [];
  for (const [start, end] of found.sort((a, b) => a[0] - b[0])) {
    const last = merged[merged.length - 1];
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else merged.push([start, end]);
  }
  return merged;
}

function lengthOf(found) {
  return found.reduce((sum, [start, end]) => sum + end - start, 0);
}

function common(left, right) {
  let sum = 0;
  for (let i = 0, j = 0; i < left.length && j < right.length;) {
    sum += Math.max(0, Math.min(left[i][1], right[j][1]) - Math.max(left[i][0], right[j][0]));
    if (left[i][1] < right[j][1]) i++;
    else j++;
  }
  return sum;
}

function countedIn(group, from, to) {
  const row = (kind) => group.rows.find((one) => one.kind === kind).lanes.map((lane) => marksOf(lane.exact));
  const [work, communication, others] = row("overlap"), [gaps] = row("idle"), memset = page.looks.indexOf("memset");
  const compute = united(pieces(work, from, to));
  const copies = united(pieces(others, from, to, (i) => others.look[i] !== memset));
  const kernels = ["compute", "communication"].map((look) => page.looks.indexOf(look));
  const made = { id: group.label, compute: lengthOf(compute), communication: lengthOf(united(pieces(communication, from, to))),
    copies: lengthOf(copies), hidden: common(compute, copies), idle: lengthOf(pieces(gaps, from, to)), kernels: 0, copy_count: 0, causes: {} };
  for (const stream of group.rows.filter((one) => one.kind === "stream"))
    for (const lane of stream.lanes) {
      const marks = marksOf(lane.exact);
      for (let i = above(marks.start, from - 1); i < marks.n && marks.start[i] < to; i++)
        if (kernels.includes(marks.look[i])) made.kernels++;
        else if (marks.look[i] !== memset) made.copy_count++;
    }
  for (let i = above(gaps.start, from - 1); i < gaps.n && gaps.start[i] < to; i++)
    for (const cause of Object.keys(page.cause_words)) if (gaps[cause]?.[i]) made.causes[cause] = (made.causes[cause] ?? 0) + gaps[cause][i];
  return made;
}

// Sums up to each border of the bins, from tally.py.
function tallied(from, to) {
  const { shift, count: bins } = page.timeline.tally, width = 2 ** shift;
  const first = Math.min(bins, Math.round(from / width)), last = Math.min(bins, Math.max(first + 1, Math.round(to / width)));
  const devices = page.timeline.tally.devices.map(({ id, columns }) => {
    const sum = (name) => {
      const values = columns[name] && column(chunks[page.timeline.summary_chunk], columns[name], bins);
      let all = 0;
      if (values) for (let i = first; i < last; i++) all += values[i];
      return all;
    };
    const causes = Object.fromEntries(Object.keys(page.cause_words).map((cause) => [cause, sum(cause)]).filter(([, ns]) => ns));
    return { id, causes, ...Object.fromEntries(["compute", "communication", "copies", "hidden", "idle", "kernels", "copy_count"].map((name) => [name, sum(name)])) };
  });
  return { from: first * width, to: last * width, exact: false, bin: width, devices };
}

function showMeasured({ from, to, exact, bin, devices }) {
  const length = to - from, share = (ns) => `${duration(ns)}, ${percent(ns, length)}`;
  const how = exact ? "exact to the nanosecond"
    : `exact between these nearest borders of bins, ${duration(bin)} wide; to the nanosecond under traceview serve`;
  const line = (device) => el("tr", {}, el("th", { scope: "row", text: device.id }), ...[
    share(device.compute), share(device.communication), share(device.copies), device.copies ? share(device.hidden).replace(/, .*/, `, ${percent(device.hidden, device.copies)}`) : "-",
    share(device.idle), count(device.kernels), count(device.copy_count),
  ].map((text) => el("td", { text })), el("td", { class: "text", text: causesText(device) }));
  const heads = ["GPU", "compute", "communication", "copies", "copies hidden", "idle", "kernels, graphs", "copies begun", "gaps begun in it, by cause"];
  const title = `Measured: ${exact ? EXACT.format(length / 1e6) + " ms" : duration(length)} from ${moment(from)} to ${moment(to)}`;
  showPanel(el("div", { class: "panel-head" }, el("h3", { text: title }), el("p", { class: "soft", text: how })), el("table", { id: "measured", "data-exact": String(exact), "data-from": from, "data-to": to },
      el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col", text })))), el("tbody", {}, ...devices.map(line))));
  measure.result = { from, to, exact, devices };
}

function causesText({ causes }) {
  return Object.entries(causes).sort((a, b) => b[1] - a[1]).map(([cause, ns]) => `${cause.replace("_", " ")} ${duration(ns)}`).join(" · ") || "none";
}

function drawMeasure(context, { height }) {
  if (measure.points.length === 2) drawBox(context, measure.points.map(toX), height);
  else if (measure.points.length) drawBox(context, [toX(measure.points[0]), toX(measure.points[0])], height);
}

function drawMeasureBar(context) {
  const [from, to] = measure.points.map(toX);
  if (to === undefined) return;
  context.fillStyle = css("--focus");
  context.fillRect(Math.min(from, to), AXIS - 3, Math.abs(to - from), 3);
  const text = duration(Math.abs(measure.points[1] - measure.points[0])), wide = context.measureText(text).width;
  const x = Math.min(Math.max((from + to) / 2 - wide / 2, 2), view.width - wide - 4);
  context.fillStyle = css("--card");
  context.fillRect(x - 4, 2, wide + 8, AXIS - 10);
  context.fillStyle = css("--focus");
  context.fillText(text, x, AXIS / 2 - 1);
}
