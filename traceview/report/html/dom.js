// Elements are built, never parsed: no text of a capture is ever read as HTML.
function byId(id) {
  return document.getElementById(id);
}

function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else if (name.startsWith("--")) made.style.setProperty(name, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Columns are [heading, cell(row)]; the first names the row.
function table(caption, columns, rows, most = Infinity) {
  const line = (row) =>
    el("tr", {}, ...columns.map(([, cell], place) => (place ? el("td", {}, cell(row)) : el("th", { scope: "row" }, cell(row)))));
  const body = el("tbody", {}, ...rows.slice(0, most).map(line));
  const rest = rows.length > most
    ? el("button", { type: "button", text: `Show all ${rows.length}`, onclick: () => { body.append(...rows.slice(most).map(line)); rest.remove(); } })
    : null;
  return el("div", { class: "table", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {},
      el("caption", { class: "hidden", text: caption }),
      el("thead", {}, el("tr", {}, ...columns.map(([heading]) => el("th", { scope: "col", text: heading })))),
      body), rest);
}
