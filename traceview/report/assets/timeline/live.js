// A page from `traceview analyze --serve` requests detail from its own server; a page from disk sends no request.
import { decodeMarks } from "../core/columns.js";
import { byId } from "../core/dom.js";
import { page } from "../core/page.js";
import { liveMarks } from "./levels.js";
import { drawnY } from "./rows.js";
import { board, view } from "./state.js";
import { schedule } from "./view.js";

/** @type {{ timer: ReturnType<typeof setTimeout> | undefined, asking: AbortController | null }} */
const live = { timer: undefined, asking: null };

function requestFromServer(what, query, options = {}) {
  return fetch(`${what}?${new URLSearchParams(query)}`, options);
}

async function valuesFromServer(what, query) {
  return (await requestFromServer(what, query)).json();
}

function needsDetail(lane) {
  const each = (view.to - view.from) / view.width,
    finest = lane.levels[lane.levels.length - 1];
  return (
    !lane.whole && finest && 2 ** finest.shift > each && !liveMarks(lane, Math.max(view.from, view.whole[0]), view.to)
  );
}

// When the view has not moved for 80 ms, request the visible range and half its length on both sides.
export function requestDetail() {
  if (!page.live) return;
  clearTimeout(live.timer);
  live.timer = setTimeout(async () => {
    const top = byId("scroll").scrollTop;
    const rows = board.shown.filter(
      (item) =>
        !item.summary &&
        item.lanes?.some(needsDetail) &&
        drawnY(item, top) + item.h >= 0 &&
        drawnY(item, top) <= view.height,
    );
    if (!rows.length) return;
    live.asking?.abort();
    live.asking = new AbortController();
    const pad = (view.to - view.from) / 2,
      shift = Math.max(0, Math.floor(Math.log2((view.to - view.from) / view.width)));
    try {
      const [from, to] = [Math.floor(view.from - pad), Math.ceil(view.to + pad)];
      const query = { from, to, shift, rows: rows.map((row) => row.number) };
      const answer = await requestFromServer("marks", query, { signal: live.asking.signal });
      if (!answer.ok) throw new Error(await answer.text());
      storeDetail(await answer.arrayBuffer());
    } catch (error) {
      if (!(error instanceof DOMException && error.name === "AbortError"))
        byId("found").textContent = "no answer from the server";
    }
  }, 80);
}

function storeDetail(answer) {
  const length = new DataView(answer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(answer, 4, length)));
  const buffer = answer.slice(4 + length);
  for (const [number, lanes] of Object.entries(header.rows))
    lanes.forEach(({ bin, marks }, place) => {
      const { from, to } = header;
      board.numbered[number].lanes[place].live = { marks: decodeMarks(buffer, marks), bin, from, to };
    });
  schedule();
}

export function measureOnServer(from, to) {
  return valuesFromServer("measure", { from, to });
}

export async function findOnServer(text) {
  const { total, first, places } = await valuesFromServer("find", { text, at: Math.round(view.from) });
  return {
    total,
    before: first,
    places: places.map(([row, start, end]) => ({ start, end, rows: [board.numbered[row].id] })),
  };
}

// Returns each partner as marks of length 1.
export async function partnersFromServer({ item, marks, i }) {
  const found = await valuesFromServer("partner", { row: item.number, correlation: marks.correlation[i] });
  return found.map(({ row, ...one }) => ({
    row: board.numbered[row],
    i: 0,
    marks: {
      n: 1,
      ...Object.fromEntries(Object.entries(one).map(([name, value]) => [name, [value]])),
      reach: [one.end],
    },
  }));
}
