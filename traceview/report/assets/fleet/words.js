// The text of a cell: the same for the pointer, the keyboard and a screen reader.
import { duration, percent } from "../core/words.js";
import { FIGURES } from "./scale.js";
import { content, heat, map } from "./state.js";

export function rankLabel(row) {
  return content.ranks[row].label;
}

export function cellText(row, column) {
  const rank = content.ranks[map.order[row]],
    lag =
      rank.lag === null ? "" : `, ${rank.lag < 0 ? "−" : "+"}${duration(Math.abs(rank.lag))} compared to the others`;
  const whole = `${rank.label}${rank.straggler ? " (straggler)" : ""}${rank.node === null ? "" : ` on node ${rank.node}`}: own ${duration(rank.own)}${lag}, waits ${duration(rank.wait)}, arrived last in ${percent(rank.last_count, rank.matched)} of its collectives`;
  const idle = content.causes
    .map((cause, place) => ({ cause, ns: rank.causes[place] }))
    .filter(({ ns }) => ns)
    .sort((a, b) => b.ns - a.ns)
    .slice(0, 3);
  const why = idle.length
    ? `. Idle ${duration(rank.idle)}: ${idle.map(({ cause, ns }) => `${cause.replace("_", " ")} ${duration(ns)}`).join(", ")}`
    : "";
  if (column === null || !heat.columns) return whole + why;
  const at = (figure) => heat[figure][map.order[row] * heat.columns + column];
  if (at("wall") < 0) return `${whole}${why}. Iteration ${heat.names[column]}: not in this capture`;
  const cell = Object.keys(FIGURES)
    .map((figure) => `${figure} ${duration(at(figure))}`)
    .join(", ");
  return `${whole}${why}. Iteration ${heat.names[column]}${heat.steady[column] ? "" : " (skipped)"}: ${cell}`;
}
