// What to change first, and the tables.
import { actionButton, byId, el, headedSection, prose, softLine } from "../core/dom.js";
import { countColumn, durationColumn, textColumn, shareColumn, table } from "../core/table.js";
import { countText } from "../core/words.js";
import { selectCell } from "./moves.js";
import { content, map } from "./state.js";
import { rankLabel } from "./words.js";

export function showAnswer() {
  byId("title").textContent = content.name;
  byId("facts").textContent = byId("facts").title = content.facts;
  byId("answer-title").textContent = content.answer;
  const skipped = content.skipped.length;
  byId("skipped").hidden = !skipped;
  if (skipped)
    byId("skipped").textContent =
      `${countText(skipped)} of ${countText(skipped + content.reports)} reports could not be read and are excluded from all figures; the table below lists them.`;
  for (const { title, text, price, rank } of content.advice) {
    const goTo = actionButton(title, { class: "goto" }, () => {
      selectCell(map.order.indexOf(rank));
      byId("stage").focus();
    });
    const gain = content.answer.includes(price) ? null : softLine(price);
    byId("advice").append(el("li.card", goTo, el("p", ...prose(text)), gain));
  }
  for (const note of content.notes) byId("lacks").append(el("li", ...prose(note)));
}

function markedLabel({ label, straggler }) {
  return straggler ? `! ${label}` : label;
}

export function showTables() {
  const each = content.each ? "means per steady iteration" : "whole captures";
  const add = (title, columns, rows, wide = "") =>
    rows.length && byId("each").append(headedSection({ class: wide }, title, null, table(title, columns, rows, 40)));
  const slowest = [...content.ranks].sort((a, b) => (b.lag ?? b.own) - (a.lag ?? a.own));
  add(
    `Ranks, ${each}, slowest first`,
    [
      textColumn("rank", (rank) => rank.label, markedLabel),
      { field: "straggler", value: (rank) => (rank.straggler ? 1 : 0) },
      ...(content.sets > 1 ? [countColumn("set", (rank) => rank.set + 1)] : []),
      { field: "file", value: (rank) => rank.file },
      ...(content.ranks.some((rank) => rank.node !== null) ? [countColumn("node", (rank) => rank.node)] : []),
      { field: "device", value: (rank) => rank.device },
      textColumn("GPU", (rank) => rank.gpu),
      ...["wall", "own"].map((key) => durationColumn(key, (rank) => rank[key])),
      durationColumn("lag", (rank) => rank.lag),
      ...["compute", "exposed_communication", "copies", "idle"].map((key) =>
        durationColumn(key.replace(/_/g, " "), (rank) => rank[key]),
      ),
      durationColumn("wait", (rank) => rank.wait),
      durationColumn("exposed wait", (rank) => rank.bare_wait),
      durationColumn("delays others", (rank) => rank.caused),
      durationColumn("exposed delay", (rank) => rank.bare_caused),
      ...content.causes.map((cause, place) => ({ field: `idle_${cause}_ns`, value: (rank) => rank.causes[place] })),
      countColumn("kernels", (rank) => rank.kernels),
      shareColumn("arrived last", (rank) => [rank.last_count, rank.matched]),
      countColumn("iterations", (rank) => rank.iterations),
    ],
    slowest,
    "wide",
  );
  add(
    "Collectives, matched across ranks",
    [
      textColumn("collective", (group) => group.kind),
      textColumn("group", (group) => group.name),
      textColumn("matched by", (group) => group.how),
      countColumn("ranks", (group) => group.ranks),
      countColumn("count", (group) => group.count),
      durationColumn("skew, median", (group) => group.skew_median),
      durationColumn("skew, 95%", (group) => group.skew_p95),
      durationColumn("transfer", (group) => group.transfer),
      durationColumn("waited", (group) => group.waited),
      textColumn("most often last", (group) => rankLabel(group.last)),
      shareColumn("share", (group) => [group.last_count, group.count]),
    ],
    content.groups,
    "wide",
  );
  add(
    `Waits between ranks${content.pairCount > content.pairs.length ? ` (longest of ${countText(content.pairCount)})` : ""}`,
    [
      textColumn("rank", (pair) => rankLabel(pair.waiter)),
      textColumn("waited for", (pair) => rankLabel(pair.last)),
      durationColumn("waited", (pair) => pair.waited),
      countColumn("collectives", (pair) => pair.count),
    ],
    content.pairs,
  );
  add(
    "Clocks",
    [
      textColumn("report", (clock) => clock.file),
      durationColumn("offset", (clock) => clock.offset),
      textColumn("method", (clock) => clock.words),
      textColumn("aligned with", (clock) => clock.session),
      { field: "drift_ns_per_s", value: (clock) => clock.drift },
      { field: "uncertainty_ns", value: (clock) => clock.uncertainty ?? "" },
    ],
    content.clocks,
  );
  add(
    "Reports that could not be read",
    [textColumn("report", (one) => one.file), textColumn("reason", (one) => one.reason)],
    content.skipped,
  );
}
