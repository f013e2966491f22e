// A question on the single events of the page: "gaps cause:host duration>50us by:range". The answer is a table that leads to the
// timeline.
import { firstAbove } from "../core/columns.js";
import { actionButton, byId, el, softLine } from "../core/dom.js";
import { page } from "../core/page.js";
import { lookWord } from "../core/palette.js";
import { countColumn, durationColumn, sortableTable, textColumn } from "../core/table.js";
import { countText, momentText } from "../core/words.js";
import { marksIn } from "../timeline/levels.js";
import { linkTo } from "../timeline/linked.js";
import { allRows } from "../timeline/rows.js";

const EXAMPLES = ["kernels by:name", "gaps cause:host by:range", "kernels duration>50us range:backward"];
const KINDS = { kernels: "stream", gaps: "idle" };
const FIELDS = { kernels: ["name", "stream", "range"], gaps: ["name", "cause", "range"] };
const UNITS = { ns: 1, us: 1e3, µs: 1e3, ms: 1e6, s: 1e9 };
const MOST_ANSWERS = 1000;
const FIRST_ANSWERS = 20;
const USAGE =
  "kernels or gaps, then name:TEXT, stream:TEXT, range:TEXT, cause:TEXT, duration>TIME, duration<TIME, by:FIELD";

// Returns { source, tests, by }; throws an Error whose message is one line.
function parsedQuery(text) {
  const [source, ...words] = text.match(/(?:[^\s"]|"[^"]*")+/g) ?? [];
  if (!Object.hasOwn(KINDS, source ?? "")) throw new Error(`A query begins with kernels or gaps: ${USAGE}`);
  const query = { source, by: "", tests: /** @type {((event: any) => boolean)[]} */ ([]) };
  for (const word of words) {
    const [, field, sign, quoted] = word.match(/^(\w+)([:<>])(.+)$/) ?? [],
      value = (quoted ?? "").replaceAll('"', "").toLowerCase();
    const known = FIELDS[source].includes(sign === ":" && field === "by" ? value : field);
    if (field === "by" && sign === ":" && known) query.by = value;
    else if (field === "duration" && sign !== ":") query.tests.push(durationTest(sign, value));
    else if (sign === ":" && known) query.tests.push((event) => event[field].toLowerCase().includes(value));
    else throw new Error(`“${word}” is not known for ${source}: ${USAGE}`);
  }
  return query;
}

function durationTest(sign, value) {
  const [, number, unit] = value.match(/^([\d.]+)(ns|us|µs|ms|s)$/) ?? [];
  if (!unit || !isFinite(number)) throw new Error(`A duration is a number and ns, us, ms or s: “${value}”`);
  const limit = number * UNITS[unit];
  return ({ duration }) => (sign === ">" ? duration > limit : duration < limit);
}

// The single events of the page, as records; a gap has the name of the operation that ends it.
function eventsOf(source) {
  const looks = new Set(["compute", "communication"].map((look) => page.looks.indexOf(look)));
  return allRows()
    .filter(({ kind }) => kind === KINDS[source])
    .flatMap((row) => {
      const marks = marksIn(row.lanes[0]?.exact),
        rangeAt = rangesOf(row.group);
      return [...Array(marks?.n ?? 0).keys()]
        .filter((i) => source === "gaps" || looks.has(marks.look[i]))
        .map((i) => ({
          name: page.names[marks.name[i]] ?? "",
          stream: row.label,
          cause: lookWord(page.looks[marks.look[i]]).replace("idle: ", ""),
          range: rangeAt(marks.start[i]),
          start: marks.start[i],
          end: marks.end[i],
          duration: marks.end[i] - marks.start[i],
          rows: [row.id],
        }));
    });
}

// Returns the innermost range of a GPU's work at a time.
function rangesOf(group) {
  const lanes = group.rows
    .filter(({ kind }) => kind === "projected")
    .flatMap(({ lanes: [lane] }) => marksIn(lane?.exact) ?? [])
    .reverse();
  return (at) => {
    for (const marks of lanes) {
      const i = firstAbove(marks.start, at) - 1;
      if (i >= 0 && marks.end[i] > at) return page.names[marks.name[i]] ?? "";
    }
    return "";
  };
}

function answerOf(text) {
  const { source, by, tests } = parsedQuery(text);
  const found = eventsOf(source).filter((event) => tests.every((test) => test(event)));
  const line = softLine(`${countText(found.length)} ${source}, of those that this page holds singly`);
  return [line, by ? groupTable(text, source, found, by) : eventTable(text, source, found)];
}

function eventTable(text, source, found) {
  const moment = { ...durationColumn("start", ({ start }) => start), cell: ({ start }) => momentText(start) };
  const columns = [
    ...FIELDS[source].map((field) => textColumn(field, (event) => event[field])),
    { ...moment, scales: undefined },
    durationColumn("duration", ({ duration }) => duration),
  ];
  const open = (place) => linkTo({ title: text, words: source, places: found }, place);
  return sortableTable("Answer", columns, found.slice(0, MOST_ANSWERS), FIRST_ANSWERS, { open });
}

function groupTable(text, source, found, by) {
  const groups = new Map();
  for (const event of found) {
    const group = groups.get(event[by]) ?? { name: event[by], places: [], sum: 0, longest: event };
    groups.set(event[by], group);
    group.places.push(event);
    group.sum += event.duration;
    if (event.duration > group.longest.duration) group.longest = event;
  }
  const columns = [
    textColumn(by, ({ name }) => name || `no ${by}`),
    countColumn("count", ({ places }) => places.length),
    durationColumn("sum", ({ sum }) => sum),
    { ...durationColumn("longest", ({ longest }) => longest.duration), scales: undefined },
  ];
  const rows = [...groups.values()].sort((a, b) => b.sum - a.sum);
  const open = ({ name, places, longest }) =>
    linkTo({ title: `${text}, ${name || `no ${by}`}`, words: source, places }, longest);
  return sortableTable("Answer", columns, rows, FIRST_ANSWERS, { open });
}

export function showQuery() {
  const field = el("input", {
    type: "search",
    size: 60,
    "aria-label": "Query",
    spellcheck: "false",
    placeholder: EXAMPLES[0],
  });
  const answer = el("div", { role: "status" });
  const ask = () => {
    try {
      answer.replaceChildren(...answerOf(field.value));
    } catch (error) {
      answer.replaceChildren(el("p.tone.high", String(/** @type {any} */ (error).message)));
    }
  };
  field.addEventListener("keydown", ({ key }) => key === "Enter" && ask());
  const examples = EXAMPLES.map((text) =>
    actionButton(text, { class: "small" }, () => {
      field.value = text;
      ask();
    }),
  );
  byId("query-inner").replaceChildren(
    softLine(`${USAGE}. Enter answers; a click on a row shows its longest event in the timeline.`),
    el("div.bar.search", field, ...examples),
    answer,
  );
}
