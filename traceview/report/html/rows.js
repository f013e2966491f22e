// Where each row stands, and its label. Rows fold by group; "more" rows show on request.
const HEIGHTS = { group: 23, ruler: 18, overlap: 32, idle: 17, stream: 22, call: 20, range: 18, more: 22 };
const LANES = 3; // of the overlap band: compute, communication, copies and memset

const board = { groups: [], shown: [], height: 0 };

function loadRows(content, buffer) {
  const looks = content.timeline.looks;
  board.groups = content.timeline.groups.map((group) => ({
    ...group,
    folded: false,
    all: false,
    rows: group.rows.map((row) => {
      const marks = row.marks && decoded(buffer, row.marks);
      return { ...row, marks, lanes: lanesOf(row.kind, marks, looks) };
    }),
  }));
}

function lanesOf(kind, marks, looks) {
  if (!marks) return [];
  if (kind !== "overlap") return [marks];
  const lane = looks.map((look) => (look === "compute" ? 0 : look === "communication" ? 1 : 2));
  return Array.from({ length: LANES }, (_, one) => chosen(marks, (i) => lane[marks.look[i]] === one));
}

function placeRows() {
  let y = 0;
  board.shown = [];
  const put = (item) => {
    item.y = y;
    item.h = HEIGHTS[item.kind];
    y += item.h;
    board.shown.push(item);
  };
  for (const group of board.groups) {
    if (group.label) put({ kind: "group", group });
    if (group.folded) continue;
    const rows = group.rows.filter((row) => group.all || !row.more);
    rows.forEach(put);
    const more = group.rows.filter((row) => row.more).length;
    if (more) put({ kind: "more", group, more });
  }
  board.height = y + 4;
}

function showLabels(changed) {
  const labels = byId("labels");
  const focused = document.activeElement?.dataset?.fold;
  labels.replaceChildren(...board.shown.map((item) => labelOf(item, changed)));
  byId("rows").style.height = board.height + "px";
  if (focused) labels.querySelector(`[data-fold="${focused}"]`)?.focus();
}

function labelOf(item, changed) {
  const made = el("div", { class: "label row-" + item.kind });
  made.style.top = item.y + "px";
  made.style.height = item.h + "px";
  const number = board.groups.indexOf(item.group);
  if (item.kind === "group") {
    const { group } = item;
    const flip = () => { group.folded = !group.folded; changed(); };
    made.append(
      el("button", { class: "fold", type: "button", "aria-expanded": String(!group.folded), "data-fold": "g" + number,
        onclick: flip, text: (group.folded ? "▸ " : "▾ ") + group.label }),
      el("span", { class: "soft", text: group.note, title: group.note }));
  } else if (item.kind === "more") {
    const flip = () => { item.group.all = !item.group.all; changed(); };
    made.append(el("button", { type: "button", onclick: flip, "data-fold": "m" + number, "aria-expanded": String(item.group.all),
      text: item.group.all ? "fold" : `+ ${item.more} more` }));
  } else {
    item.labelElement = made;
    made.title = [item.label, item.note].filter(Boolean).join(", ");
    made.append(...[["", item.label], ["soft", item.note]].filter(([, text]) => text).map(([kind, text]) => el("span", { class: kind, text })));
  }
  return made;
}

// The row of an id, unfolded so that it shows; "d:" rows are a device's idle band.
function revealed(id) {
  for (const group of board.groups)
    for (const row of group.rows)
      if (row.id === id) {
        const hidden = group.folded || (row.more && !group.all);
        group.folded = false;
        group.all ||= row.more;
        return { row, hidden };
      }
  return null;
}

function rowAt(y) {
  return board.shown.find((item) => y >= item.y && y < item.y + item.h) ?? null;
}
