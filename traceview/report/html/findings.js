// Every finding with all its evidence.
function showFindings() {
  const found = page.findings.map(finding);
  byId("all").replaceChildren(...(found.length ? found : [el("p", { text: "Nothing found that cost the GPU time." })]));
}

function finding(one) {
  const places = one.evidence.map((place) => {
    const button = el("button", { type: "button", text: place.text, onclick: () => goTo(place, button) });
    return el("li", {}, button);
  });
  return el("article", { class: "finding " + one.severity, "data-finding": one.id },
    el("h3", {}, title(one)), price(one), el("p", { text: one.advice }), code(one.code, 12),
    places.length ? el("p", { class: "soft", text: "The worst places; each moves the timeline there:" }) : null,
    places.length ? el("ul", { class: "places" }, ...places) : null);
}
