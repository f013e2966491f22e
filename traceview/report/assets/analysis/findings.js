// All findings: one table of their costs, then each with its advice and evidence.
import { byId, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { counted, lasting, named, sharing, table, unseen } from "../core/table.js";
import { milliseconds } from "../core/words.js";
import { goTo } from "../timeline/go.js";
import { code, price, title } from "./answer.js";

export function showFindings() {
  const found = page.findings.map(finding);
  byId("all").replaceChildren(
    ...(found.length ? [findingsTable(), ...found] : [el("p", { text: "Nothing found that cost the GPU time." })]),
  );
}

function findingsTable() {
  return table(
    "Findings",
    [
      named("finding", (one) => one.title, title),
      named(
        "severity",
        (one) => one.severity,
        (one) => el("span", { class: "tone " + one.severity, text: one.severity }),
      ),
      ...(page.devices.length > 1 ? [named("GPU", (one) => one.device ?? "")] : []),
      lasting("cost", (one) => one.cost_ns),
      {
        ...sharing(
          "of the run",
          (one) => one.fraction,
          () => 1,
        ),
        field: "cost_fraction",
      },
      lasting(
        "per iteration",
        (one) => one.per_iteration_ns ?? "",
        (one) => (one.per_iteration_ns === null ? "-" : milliseconds(one.per_iteration_ns)),
      ),
      counted("places", (one) => one.evidence.length),
      unseen("id", (one) => one.id),
      unseen("advice", (one) => one.advice),
      unseen("code", (one) => one.code),
    ],
    page.findings,
  );
}

function finding(one) {
  const places = one.evidence.map((place) => {
    const button = el("button", { type: "button", text: place.text, onclick: () => goTo(place, button) });
    return el("li", {}, button);
  });
  return el(
    "article",
    { class: "finding " + one.severity, "data-finding": one.id },
    el("h3", {}, title(one)),
    price(one),
    el("p", { text: one.advice }),
    code(one.code, 12),
    places.length ? el("p", { class: "soft", text: "The worst places; each moves the timeline there:" }) : null,
    places.length ? el("ul", { class: "places" }, ...places) : null,
  );
}
