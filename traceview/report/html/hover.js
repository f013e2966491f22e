// What is under the pointer, and the search for a name.
function markAt(item, x, y) {
  if (!item?.marks) return null;
  const lane = Math.min(item.lanes.length - 1, Math.max(0, Math.floor(((y - item.y) / item.h) * item.lanes.length)));
  const marks = item.lanes[lane], each = (view.to - view.from) / view.width;
  const at = view.from + x * each;
  let best = null, nearest = 3 * each;
  for (let i = above(marks.reach, at - 3 * each), last = above(marks.start, at + 3 * each); i < last; i++) {
    const away = at < marks.start[i] ? marks.start[i] - at : at > marks.end[i] ? at - marks.end[i] : 0;
    if (away <= nearest) { nearest = away; best = i; }
  }
  return best === null ? null : { item, marks, i: best };
}

function facts({ item, marks, i }) {
  const length = marks.end[i] - marks.start[i], look = page.looks[marks.look[i]];
  const several = marks.count ? marks.count[i] : 1;
  const rows = [["what", several > 1 ? `${count(several)} events, summarised` : lookWord(look)], ["start", moment(marks.start[i])], ["duration", duration(length)]];
  if (several > 1) rows.push(["their time", duration(marks.busy[i])]);
  if (marks.bytes?.[i]) rows.push(["bytes", size(marks.bytes[i])], ["bandwidth", bandwidth(marks.bytes[i], several > 1 ? marks.busy[i] : length)]);
  if (marks.host_memory?.[i]) rows.push(["host memory", page.memories[marks.host_memory[i] - 1]]);
  for (const [cost, word] of [["waited", "GPU worked"], ["starved", "GPU starved"], ["refill", "refill after"]])
    if (marks[cost]?.[i]) rows.push([word, duration(marks[cost][i])]);
  if (item.kind === "idle")
    for (const cause of Object.keys(page.cause_words))
      if (marks[cause]?.[i]) rows.push([page.cause_words[cause], duration(marks[cause][i])]);
  if (item.label && item.kind !== "idle") rows.push([item.kind === "stream" ? "stream" : "row", item.label]);
  if (marks.correlation?.[i]) rows.push(["correlation", String(marks.correlation[i])]);
  return rows;
}

function headline({ item, marks, i }) {
  const name = page.names[marks.name[i]];
  if (item.kind === "idle") return name ? `idle, until ${name}` : "idle";
  return marks.count && marks.count[i] > 1 ? `longest: ${name}` : name;
}

function showTip(event) {
  const box = byId("canvas").getBoundingClientRect();
  const y = event.clientY - box.top + byId("scroll").scrollTop;
  const hit = event.buttons ? null : markAt(rowAt(y), event.clientX - box.left, y);
  const tip = byId("tip");
  tip.hidden = !hit;
  if (!hit) return;
  const pairs = facts(hit).flatMap(([word, value]) => [el("dt", { text: word }), el("dd", { text: value })]);
  tip.replaceChildren(el("b", { text: headline(hit) }), el("dl", {}, ...pairs));
  const left = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - tip.offsetWidth - 12 : event.clientX + 16;
  const top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8);
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, top) + "px";
}

function watchHover() {
  const stage = byId("stage");
  stage.addEventListener("pointermove", showTip);
  stage.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
  byId("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") findNext(event.target.value);
  });
}

// The next mark after the highlight (or the left edge) whose name holds the text, going round.
function findNext(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return;
  const fits = page.names.map((name) => name.toLowerCase().includes(wanted));
  const after = view.lit?.found ? view.lit.start : view.from - 1;
  let next = null, first = null, total = 0;
  for (const row of board.groups.flatMap((group) => group.rows)) {
    if (!row.marks || row.kind === "overlap" || row.kind === "idle") continue;
    for (let i = 0; i < row.marks.n; i++) {
      if (!fits[row.marks.name[i]]) continue;
      total++;
      const place = { start: row.marks.start[i], end: row.marks.end[i], rows: [row.id], found: true };
      if (!first || place.start < first.start) first = place;
      if (place.start > after && (!next || place.start < next.start)) next = place;
    }
  }
  byId("found").textContent = total ? `${count(total)} found` : "none found";
  if (first) goTo(next ?? first);
}
