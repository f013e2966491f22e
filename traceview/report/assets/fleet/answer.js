// What to change first, and the tables.
import { byId, el } from "../core/dom.js";
import { counted, lasting, named, sharing, table, unseen } from "../core/table.js";
import { count, milliseconds } from "../core/words.js";
import { choose } from "./moves.js";
import { content, map } from "./state.js";
import { label } from "./words.js";

export function answer() {
  byId("title").textContent = content.title;
  byId("facts").textContent = content.facts;
  byId("verdict").textContent = content.verdict;
  const skipped = content.skipped.length;
  byId("skipped").hidden = !skipped;
  if (skipped)
    byId("skipped").textContent =
      `${count(skipped)} of ${count(skipped + content.reports)} reports could not be read and are not in any figure; the table below names them.`;
  for (const one of content.advice)
    byId("advice").append(
      el(
        "li",
        { class: "card" },
        el("button", {
          type: "button",
          class: "goto",
          text: one.title,
          onclick: () => {
            choose(map.order.indexOf(one.rank));
            byId("stage").focus();
          },
        }),
        el("p", { class: "price" }, el("b", { text: one.price })),
        el("p", { text: one.text }),
      ),
    );
  for (const note of content.notes) byId("lacks").append(el("li", { text: note }));
}

export function tables() {
  const each = content.each ? "means of a steady iteration" : "whole captures";
  const add = (title, columns, rows, wide = "") =>
    rows.length &&
    byId("each").append(el("section", { class: wide }, el("h2", { text: title }), table(title, columns, rows, 40)));
  const slowest = [...content.ranks].sort((a, b) => (b.lag ?? b.own) - (a.lag ?? a.own));
  add(
    `Ranks, ${each}, slowest first`,
    [
      named(
        "rank",
        (rank) => rank.label,
        (rank) => (rank.straggler ? `! ${rank.label}` : rank.label),
      ),
      unseen("straggler", (rank) => (rank.straggler ? 1 : 0)),
      ...(content.sets > 1 ? [counted("set", (rank) => rank.set + 1)] : []),
      unseen("file", (rank) => rank.file),
      unseen("device", (rank) => rank.device),
      named("GPU", (rank) => rank.gpu),
      ...["wall", "own"].map((key) => lasting(key, (rank) => rank[key])),
      lasting(
        "lag",
        (rank) => rank.lag ?? "",
        (rank) => (rank.lag === null ? "-" : milliseconds(rank.lag)),
      ),
      ...["compute", "exposed_communication", "copies", "idle"].map((key) =>
        lasting(key.replace(/_/g, " "), (rank) => rank[key]),
      ),
      lasting("waits", (rank) => rank.wait),
      lasting("of it bare", (rank) => rank.bare_wait),
      lasting("others wait for it", (rank) => rank.caused),
      lasting("of that bare", (rank) => rank.bare_caused),
      ...content.causes.map((cause, place) => unseen(`idle_${cause}_ns`, (rank) => rank.causes[place])),
      counted("kernels", (rank) => rank.kernels),
      sharing(
        "came last",
        (rank) => rank.last_count,
        (rank) => rank.matched,
      ),
      counted("iterations", (rank) => rank.iterations),
    ],
    slowest,
    "wide",
  );
  add(
    "Collectives, matched across ranks",
    [
      named("what", (group) => group.kind),
      named("on", (group) => group.name),
      named("matched by", (group) => group.how),
      counted("ranks", (group) => group.ranks),
      counted("count", (group) => group.count),
      lasting("skew, median", (group) => group.skew_median),
      lasting("skew, 95%", (group) => group.skew_p95),
      lasting("transfer", (group) => group.transfer),
      lasting("waited", (group) => group.waited),
      named("last most often", (group) => label(group.last)),
      sharing(
        "that often",
        (group) => group.last_count,
        (group) => group.count,
      ),
    ],
    content.groups,
    "wide",
  );
  add(
    `Who waited for whom${content.pairCount > content.pairs.length ? `, the longest of ${count(content.pairCount)}` : ""}`,
    [
      named("rank", (pair) => label(pair.waiter)),
      named("waited for", (pair) => label(pair.last)),
      lasting("waited", (pair) => pair.waited),
      counted("collectives", (pair) => pair.count),
    ],
    content.pairs,
  );
  add(
    "Clocks",
    [
      named("report", (clock) => clock.file),
      lasting("offset", (clock) => clock.offset),
      named("how", (clock) => clock.words),
      named("beside", (clock) => clock.session),
      unseen("drift_ns_per_s", (clock) => clock.drift),
      unseen("uncertainty_ns", (clock) => clock.uncertainty ?? ""),
    ],
    content.clocks,
    "wide",
  );
  add(
    "Reports that could not be read",
    [named("report", (one) => one.file), named("why", (one) => one.reason)],
    content.skipped,
  );
}
