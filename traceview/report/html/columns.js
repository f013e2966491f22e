// The other half of columns.py: packed columns back into typed arrays.
const KINDS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };

async function inflated(id) {
  const text = atob(byId(id).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// Every browser's machine is little-endian, as the columns are.
function column(buffer, [place, kind], length) {
  return new KINDS[kind](buffer, place, length);
}

// start, end: ns from the page's zero. reach: the latest end so far, which ascends and can be searched.
function decoded(buffer, places) {
  const { n, start: steps, length, ...others } = places;
  const step = column(buffer, steps, n);
  const span = column(buffer, length, n);
  const start = new Float64Array(n), end = new Float64Array(n), reach = new Float64Array(n);
  for (let i = 0, at = 0, far = -Infinity; i < n; i++) {
    start[i] = at += step[i];
    end[i] = at + span[i];
    reach[i] = far = Math.max(far, end[i]);
  }
  const marks = { n, start, end, reach };
  for (const [name, place] of Object.entries(others)) marks[name] = column(buffer, place, n);
  return marks;
}

// Some of the marks, by a test on their place.
function chosen(marks, test) {
  const rows = [];
  for (let i = 0; i < marks.n; i++) if (test(i)) rows.push(i);
  const taken = { n: rows.length };
  for (const [name, values] of Object.entries(marks))
    if (name !== "n") taken[name] = values.constructor.from(rows, (row) => values[row]);
  for (let i = 0, far = -Infinity; i < taken.n; i++) taken.reach[i] = far = Math.max(far, taken.end[i]);
  return taken;
}

// The first place whose value is greater than `at`, in ascending values.
function above(values, at) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > at) high = middle;
    else low = middle + 1;
  }
  return low;
}
