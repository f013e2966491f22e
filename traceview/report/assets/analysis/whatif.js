// What changes would give: the reader checks some, and the predicted iteration with its range and critical path follows.
import { byId, el, queryAll, softLine } from "../core/dom.js";
import { page } from "../core/page.js";
import { partItem, partsBar } from "../core/palette.js";
import { duration, percent, signedPercent, timeRange } from "../core/words.js";

const MOST_PARTS = 5;
const LEAST_PART = 0.01; // share of the time; smaller parts are in the bar alone

export function showWhatIf() {
  const found = page.predictions;
  queryAll("#whatif, nav a[href='#whatif']").forEach((part) => part.toggleAttribute("hidden", !found));
  if (!found) return;
  const alone = found.rows.filter(({ changes }) => changes.length === 1);
  const boxes = alone.map((row, at) => el("input", { type: "checkbox", value: row.changes[0], checked: at === 0 }));
  const show = () =>
    byId("then").replaceChildren(
      ...outcome(
        found,
        boxes.flatMap((box) => (box.checked ? box.value : [])),
      ),
    );
  byId("changes").replaceChildren(
    el("legend.soft", "Changes, with the gain of each alone"),
    ...alone.map((row, at) =>
      el("label", { title: row.note }, boxes[at], el("span", row.title), el("b", gainOf(found, row))),
    ),
  );
  byId("changes").addEventListener("change", show);
  show();
}

function gainOf({ base_ns: base }, { ns }) {
  return signedPercent(ns > base ? "+" : "−", Math.abs(ns - base), base);
}

/** @param {import("../types").Predictions} found @param {string[]} chosen */
function outcome(found, chosen) {
  const times = `${found.now} ${duration(found.base_ns)}`;
  const now = pathBar(chosen.length ? found.now : times, found.base_ns, found.path, found.base_ns);
  if (!chosen.length) return now;
  const row = found.rows.find(
    ({ changes }) => changes.length === chosen.length && chosen.every((one) => changes.includes(one)),
  );
  if (!row)
    return [
      ...now,
      el("p", `Not computed: only the best ${found.combined} changes are combined, as far as they fit each other.`),
    ];
  return [
    ...now,
    ...pathBar("then", row.ns, row.path, found.base_ns),
    el(
      "p",
      el("b", `${duration(found.base_ns)} → ${duration(row.ns)}`),
      chosen.length > 1 ? `, ${gainOf(found, row)}` : "",
      ` (${timeRange(row.low, row.high)})`,
    ),
    softLine(row.note),
  ];
}

// The critical path of an iteration as a bar, as long as its time.
function pathBar(name, ns, path, base) {
  const parts = [...path].sort((a, b) => b.ns - a.ns);
  const share = (part) => percent(part, ns);
  const large = parts.slice(0, MOST_PARTS).filter((part) => part.ns >= LEAST_PART * ns);
  const bar = partsBar(`Critical path ${name}`, parts, share);
  bar.style.width = `${Math.min(100, (100 * ns) / base)}%`;
  return [
    el("div.path", el("span", name), el("div", bar)),
    el("ul.parts", ...large.map((part) => partItem(part.look, part.word, share(part.ns)))),
  ];
}
