// A page from `traceview serve` asks its own server for what it does not hold; a page from disk never asks anybody.
const live = { timer: 0, asking: null };

function ask(what, query) {
  return fetch(`${what}?${new URLSearchParams(query)}`, { signal: live.asking?.signal });
}

// The server's marks, where they cover the stretch and are no coarser than the screen.
function liveMarks(lane, from, to) {
  const each = (view.to - view.from) / view.width, found = lane.live;
  return !lane.whole && found && found.from <= from && found.to >= to && found.bin <= each ? { marks: found.marks, bin: found.bin } : null;
}

function lacks(lane) {
  const each = (view.to - view.from) / view.width, finest = lane.levels[lane.levels.length - 1];
  return !lane.whole && finest && 2 ** finest.shift > each && !liveMarks(lane, Math.max(view.from, view.whole[0]), view.to);
}

// Once the view rests a little, ask for what is in sight and half as much on both sides.
function askLive() {
  if (!page.live) return;
  clearTimeout(live.timer);
  live.timer = setTimeout(async () => {
    const top = byId("scroll").scrollTop;
    const rows = board.shown.filter((item) => item.lanes?.some(lacks) && item.y + item.h >= top && item.y <= top + view.height);
    if (!rows.length) return;
    live.asking?.abort();
    live.asking = new AbortController();
    const pad = (view.to - view.from) / 2, shift = Math.max(0, Math.floor(Math.log2((view.to - view.from) / view.width)));
    try {
      const answer = await ask("marks", { from: Math.floor(view.from - pad), to: Math.ceil(view.to + pad), shift, rows: rows.map((row) => row.number) });
      takeLive(await answer.arrayBuffer());
    } catch (error) {
      if (error.name !== "AbortError") byId("found").textContent = "the server does not answer";
    }
  }, 80);
}

function takeLive(answer) {
  const length = new DataView(answer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(answer, 4, length)));
  const buffer = answer.slice(4 + length);
  for (const [number, lanes] of Object.entries(header.rows))
    lanes.forEach(({ bin, marks }, place) => {
      board.numbered[number].lanes[place].live = { marks: decoded(buffer, marks), bin, from: header.from, to: header.to };
    });
  schedule();
}

async function measuredLive(from, to) {
  return (await fetch(`measure?${new URLSearchParams({ from, to })}`)).json();
}

async function foundLive(text) {
  const { total, first, places } = await (await fetch(`find?${new URLSearchParams({ text, at: Math.round(view.from) })}`)).json();
  return { total, first, places: places.map(([row, start, end]) => ({ start, end, rows: [board.numbered[row].id], found: true })) };
}

// One mark by itself, in the shape of a lane's marks.
async function partnersLive({ item, marks, i }) {
  const found = await (await fetch(`partner?${new URLSearchParams({ row: item.number, correlation: marks.correlation[i] })}`)).json();
  return found.map(({ row, ...one }) => ({
    row: board.numbered[row], i: 0,
    marks: { n: 1, ...Object.fromEntries(Object.entries(one).map(([name, value]) => [name, [value]])), reach: [one.end] },
  }));
}
