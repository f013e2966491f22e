// Patterns and names of the looks of marks; palette.css has their colours. No meaning depends on colour alone.
import { byId, context2d, el } from "./dom.js";

const LOOK_WORDS = {
  compute: "compute",
  communication: "communication",
  h2d: "copy h2d",
  d2h: "copy d2h",
  d2d: "copy d2d, p2p",
  copy: "other copy",
  memset: "memset",
  call_sync: "synchronize call",
  call_blocking_copy: "blocking copy call",
  call_memory: "allocation or free",
  call_api: "other CUDA call",
  range: "NVTX range",
  sample: "stack of the thread",
  iteration: "iteration",
  skipped: "skipped iteration",
  counter: "counter",
};

// Patterns distinguish the classes without colour.
const PATTERNS = {
  communication: "hatched",
  h2d: "dotted",
  d2h: "checked",
  d2d: "level",
  copy: "dotted",
  memset: "crossed",
  call_sync: "hatched",
  call_blocking_copy: "dotted",
  idle_profiler: "dotted",
  profiler: "dotted",
  idle_queued: "slashed",
  idle_launch: "upright",
  idle_sync: "crossed",
  idle_blocking_copy: "striped",
  idle_memory: "checked",
  idle_api: "level",
  idle_host: "striped",
  exposed_host: "striped",
  exposed_waits_for_it: "crossed",
  exposed_launch: "upright",
  exposed_same_stream: "hatched",
  exposed_launched_late: "checked",
  exposed_waited_itself: "level",
  exposed_other: "dotted",
  exposed_queue: "slashed",
  exposed_copy_engine: "level",
  exposed_end: "dotted",
};

// Paths of SVG for the lines of a pattern in a tile of 8 by 8 pixels.
const FALLING = "M-8 0L0 8M0 0L8 8M8 0L16 8";
const RISING = "M-8 8L0 0M0 8L8 0M8 8L16 0";
const STROKES = {
  striped: FALLING,
  slashed: RISING,
  hatched: RISING,
  crossed: FALLING + RISING,
  upright: "M2 0V8M6 0V8",
  level: "M0 2H8M0 6H8",
  checked: "M4 0V8M0 4H8",
};

export const RANGE_COLOURS = 8;
export const SERIES_COLOURS = 10; // of kernel names or families; one more stands for the others

/**
 * Tints of the current theme: the looks by their number, then the colours of NVTX ranges, then those of kernel names or
 * families. Each has a fill, a text colour, a pattern and a pixel value. `known` caches what `css` returns.
 * @type {{ fill: string[], ink: string[], pattern: (CanvasPattern | null | "")[], pixel: number[],
 *   css: CSSStyleDeclaration | null, known: Map<string, string> }}
 */
export const palette = { fill: [], ink: [], pattern: [], pixel: [], css: null, known: new Map() };

export function lookWord(look) {
  return LOOK_WORDS[look] ?? look.replace("_", ": ").replaceAll("_", " ");
}

function patternName(look) {
  return PATTERNS[look] ?? "";
}

export function swatch(look, pattern = patternName(look)) {
  return el("span", { class: "swatch " + pattern, "--fill": `var(--${look})`, "aria-hidden": "true" });
}

/**
 * A bar of parts, as long as their times.
 * @param {string} name
 * @param {{ look: string, word: string, ns: number }[]} parts
 * @param {(ns: number) => string} figure of a part, for a screen reader
 * @param {(ns: number) => string} tip
 */
export function partsBar(name, parts, figure, tip = figure) {
  const label = parts.map(({ word, ns }) => `${word} ${figure(ns)}`).join(", ");
  const pieces = parts.map(({ look, word, ns }) => {
    const style = { flex: `${ns} 0 0`, backgroundColor: `var(--${look})` };
    return el("span", { class: patternName(look), title: `${word}: ${tip(ns)}`, style });
  });
  return el("div", { class: "stack", role: "img", "aria-label": `${name}: ${label}` }, ...pieces);
}

// An entry of the list of parts under bars.
export function partItem(look, word, figure = "", { title = "", more = "" } = {}) {
  const soft = more ? el("span.soft", more) : null;
  return el("li", { title: title || null }, swatch(look), el("span", word), figure ? el("b", figure) : null, soft);
}

export function cssColour(name) {
  let colour = palette.known.get(name);
  if (colour === undefined) palette.known.set(name, (colour = palette.css?.getPropertyValue(name).trim() ?? ""));
  return colour;
}

function pixelColour(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

// Reads the colours again, after a change of theme.
export function refreshColours() {
  palette.css = getComputedStyle(document.documentElement);
  palette.known.clear();
}

export function readPalette(looks, context) {
  refreshColours();
  const ranges = Array.from({ length: RANGE_COLOURS }, (_, i) => "range-" + i),
    series = Array.from({ length: SERIES_COLOURS + 1 }, (_, i) => "series-" + i);
  palette.fill = [...looks, ...ranges, ...series].map((name) => cssColour("--" + name));
  palette.ink = palette.fill.map(inkFor);
  palette.pattern = looks.map((look) => patternName(look) && canvasPattern(context, patternName(look)));
  palette.pixel = palette.fill.map(pixelColour);
}

// Black or white, whichever has more contrast with the colour (WCAG relative luminance).
export function inkFor(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const part = parseInt(colour.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.19 ? "#10151c" : "#ffffff";
}

// The pattern of a name, "" for none: alone, or on a ground of one colour.
export function canvasPattern(context, name, ground = "transparent") {
  const tile = el("canvas", { width: 8, height: 8 });
  const pen = context2d(tile);
  pen.fillStyle = ground;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = name === "hatched" ? "rgb(255 255 255 / 38%)" : "rgb(0 0 0 / 20%)";
  pen.fillStyle = "rgb(0 0 0 / 30%)";
  pen.lineWidth = name === "striped" || name === "hatched" || name === "slashed" ? 2 : 1.3;
  pen.stroke(new Path2D(STROKES[name]));
  if (name === "dotted") for (const at of [1, 5]) pen.fillRect(at, at, 2, 2);
  return context.createPattern(tile, "repeat");
}

const THEMES = matchMedia("(prefers-color-scheme: dark)");

export function useTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", String(dark));
}

export function watchTheme(changed) {
  let asked = false;
  useTheme(THEMES.matches);
  THEMES.addEventListener("change", () => {
    if (asked) return;
    useTheme(THEMES.matches);
    changed();
  });
  byId("theme").addEventListener("click", () => {
    asked = true;
    useTheme(document.documentElement.dataset.theme !== "dark");
    changed();
  });
}
