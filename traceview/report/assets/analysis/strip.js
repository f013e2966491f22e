// The strip of the iterations on the first screen: a bar for the length of each, coloured by kind.
import { byId, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { countText, duration } from "../core/words.js";
import { linkTo } from "../timeline/linked.js";

const TALLEST = 1.3; // of the 95th percentile; longer bars are cut

export function showStrip() {
  const found = page.iterations;
  if (!("bars" in found) || found.bars.length < 2) return;
  const most = TALLEST * Math.max(found.spreads.wall_ns.p95, ...found.kinds.map((kind) => kind.median_ns));
  const places = found.bars.map(({ start, end, name }) => ({ start, end, rows: ["ruler"], text: name }));
  const bars = found.bars.map(({ ns, skipped, name }, at) => {
    const look = skipped ? "edge" : "series-" + kindOf(ns, found.kinds),
      style = { height: `${Math.max(8, Math.min(100, (100 * ns) / most))}%`, background: `var(--${look})` };
    const title = `${name}: ${duration(ns)}${skipped ? ", skipped" : ""}`;
    const open = () => linkTo({ title: "Iteration", words: "iterations", places }, places[at]);
    return el("i", { style, title, onclick: open });
  });
  const kinds = found.kinds.map(({ words }) => words).join(", ");
  const label = `${countText(found.count)} iterations by their length${kinds && `: ${kinds}`}`;
  byId("strip").replaceChildren(
    el("span", `${countText(found.count)} iterations`),
    el("span", { class: "spark", role: "img", "aria-label": label }, ...bars),
  );
}

// The kind whose middle length is nearest.
function kindOf(ns, kinds) {
  const away = kinds.map(({ median_ns: middle }) => Math.abs(Math.log(ns / middle)));
  return Math.max(0, away.indexOf(Math.min(...away)));
}
