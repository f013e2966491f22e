// Idle time of GPUs and time of threads by stack: two flame charts. The page shows one at a time.
import { actionButton, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { countText, duration, percent } from "../core/words.js";
import { chartSection } from "./chart.js";
import { icicleParts, rootTime } from "./icicle.js";

const FIGURES = {
  idle: {
    choice: "GPU idle time",
    heading: "GPU idle time by stack",
    whole: "of the idle time with a known stack",
    note: "Where the launching thread was, or the thread that waits for it, while a GPU was idle.",
  },
  thread: {
    choice: "host time",
    heading: "Host time by stack",
    whole: "of the time that all Python threads took",
    note: "Where the Python threads were, whether they ran or waited.",
  },
};
const NEARLY_ALL = 0.95;
const NOTE =
  "The program's own lines are coloured, functions of libraries are grey; a run of library calls is one part. Click a part to show it alone, and its top to go back. Small parts are left out.";

// Returns the elements of the charts; an empty list for a capture without stacks.
export function stackSections({ nodes, exact }) {
  const sections = Object.keys(FIGURES)
    .filter((figure) => nodes.some((node) => node[figure][0]))
    .map((figure) => ({ figure, element: chartSection(stackChart(nodes, figure, exact)) }));
  if (sections.length > 1) for (const shown of sections) shown.element.prepend(figureChoice(sections, shown));
  return show(sections, sections[0]);
}

// Hides all sections but one, and returns all elements.
function show(sections, shown) {
  for (const section of sections) section.element.hidden = section !== shown;
  return sections.map(({ element }) => element);
}

function figureChoice(sections, shown) {
  const button = (section) => {
    const options = { class: "small", "aria-pressed": String(section === shown) };
    return actionButton(FIGURES[section.figure].choice, options, () => {
      show(sections, section);
      /** @type {HTMLElement} */ (section.element.querySelector("[aria-pressed=true]")).focus();
    });
  };
  return el(
    "span",
    { class: "buttons choice", role: "group", "aria-label": "Time that the chart shows" },
    ...sections.map(button),
  );
}

function stackChart(every, figure, exact) {
  const { heading, whole, note } = FIGURES[figure];
  const nodes = withPaths(every, figure);
  const total = rootTime(nodes);
  const said = ({ ns, count }) =>
    `${duration(ns)}, ${percent(ns, total)} ${whole}, ${countText(count)} ${exact ? "times" : "samples"}`;
  return {
    id: `chart-stacks-${figure}`,
    note: `${note} ${figure === "idle" ? knownShare(total) : ""}${NOTE}`,
    ...icicleParts(heading, nodes, {
      tree: "callers and line, or function of a library",
      counted: exact ? "times" : "samples",
      said,
      tip: (node) => [...node.details, said(node)].join("\n"),
      most: 50,
    }),
  };
}

// What part of the idle time has a stack; a thread that waits in a system call has none in CPU samples.
function knownShare(known) {
  const idle = page.devices.reduce((sum, { views: [view] }) => sum + view.idle_ns, 0);
  return known < NEARLY_ALL * idle ? `Stacks are known for ${percent(known, idle)} of the idle time. ` : "";
}

// The nodes that have time in a figure, with their labels and callers. A caller has at least the time of its callees.
function withPaths(every, figure) {
  const nodes = [],
    index = [];
  for (const node of every) {
    const [ns, count] = node[figure];
    index.push(ns ? nodes.length : -1);
    if (!ns) continue;
    const caller = node.parent < 0 ? null : nodes[index[node.parent]];
    const named = `${node.function} (${node.place})`;
    const hasLine = !node.library && /:\d+$/.test(node.place);
    const label = hasLine ? `${node.place} ${node.function}` : runLabel(node);
    nodes.push({
      ns,
      count,
      colour: node.library ? "--sunk" : "--idle_host",
      parent: caller ? index[node.parent] : -1,
      depth: caller ? caller.depth + 1 : 0,
      label,
      path: caller ? `${caller.path} / ${label}` : label,
      details:
        node.calls > 1
          ? [`${countText(node.calls)} library calls, from ${named}`, `to ${node.inner}`]
          : node.library
            ? [node.place]
            : [],
    });
  }
  return nodes;
}

function runLabel({ function: outer, place, inner, calls }) {
  if (calls > 1) return `${outer} ${calls > 2 ? "… " : ""}› ${inner.split(" (")[0]}`;
  const file = place.split("/").at(-1);
  return file ? `${outer} (${file})` : outer;
}
