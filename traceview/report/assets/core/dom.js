// Elements are built, never parsed: no text of a capture is ever read as HTML.
/**
 * The element of an id, which must be there and, where a type is given, of that type.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 * @param {new () => T} [type]
 * @returns {T}
 */
export function byId(id, type) {
  const element = document.getElementById(id);
  if (element instanceof (type ?? HTMLElement)) return /** @type {T} */ (element);
  throw new TypeError(`the page has no such element: ${id}`);
}

/**
 * @param {string} selector
 * @returns {NodeListOf<HTMLElement>}
 */
export function queryAll(selector) {
  return document.querySelectorAll(selector);
}

/** @param {HTMLCanvasElement | OffscreenCanvas} canvas */
export function context2d(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/**
 * An element. Options are attributes, on* listeners, --* custom properties, style as an object, text and class; they may be left out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K | `${K}.${string}`} name a tag and, after dots, its classes: "p.soft"
 * @param {any[]} content options, then children: nodes and texts, of which empty ones are left out
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(name, ...content) {
  const [tag, ...classes] = name.split(".");
  const made = /** @type {HTMLElementTagNameMap[K]} */ (document.createElement(tag));
  made.classList.add(...classes);
  const hasOptions = content[0] && Object.getPrototypeOf(content[0]) === Object.prototype;
  for (const [name, value] of Object.entries(hasOptions ? content.shift() : {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else if (name === "style") Object.assign(made.style, value);
    else if (name.startsWith("--")) made.style.setProperty(name, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...content.filter((child) => child || child === 0));
  return made;
}

// A line that explains, in a paler colour.
export function softLine(...content) {
  return el("p.soft", ...content);
}

// A section with its heading and, where there is one, a line that explains it.
export function headedSection(options, heading, note, ...children) {
  return el("section", options, el("h2", heading), note ? softLine(note) : null, ...children);
}

/**
 * @param {string | (Node | string)[]} content
 * @param {Record<string, any>} options as those of `el`
 * @param {(event: any) => void} action what a click does
 */
export function actionButton(content, options, action) {
  return el("button", { type: "button", ...options, onclick: action }, ...[content].flat());
}

/**
 * Buttons of which one is pressed: the last that was clicked.
 * @param {{ text: string, title?: string, pressed: boolean, choose: () => void }[]} choices
 */
export function choiceButtons(choices) {
  const buttons = choices.map(({ text, title, pressed, choose }) =>
    actionButton(text, { title, "aria-pressed": String(pressed) }, ({ target }) => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button === target));
      choose();
    }),
  );
  return buttons;
}

/**
 * A text whose words in backticks are code, or what `tag` says.
 * @param {string} text
 * @param {"code" | "kbd"} tag
 * @returns {(Node | string)[]}
 */
export function prose(text, tag = "code") {
  return text.split("`").map((part, at, parts) => (at % 2 && at < parts.length - 1 ? el(tag, { text: part }) : part));
}

// Ends the task, so that the browser can draw and answer; the rest comes before the parser goes on with the document.
export function nextTask() {
  const { scheduler } = /** @type {any} */ (globalThis);
  if (!scheduler?.postTask) return new Promise((resolve) => setTimeout(resolve));
  return scheduler.postTask(() => {}, { priority: "user-blocking" });
}

// Resolves after the browser has drawn what stands on the page; at once where it draws nothing, as in a hidden tab.
export async function drawnFrame() {
  if (!document.hidden) await new Promise(requestAnimationFrame);
  return nextTask();
}
