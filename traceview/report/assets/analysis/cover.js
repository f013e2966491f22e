// The choice between the steady part and the whole window, which the answer, the findings and the kernels follow.
import { byId, choiceButtons } from "../core/dom.js";
import { page } from "../core/page.js";

const COUNTED = "in the counted iterations";

/** What follows the choice. @type {(() => void)[]} */
export const afterCover = [];

// Shows what follows the choice, now and after each choice.
export function followCover(show) {
  show();
  afterCover.push(show);
}

export function showCovers() {
  const [first, second] = page.covers;
  const { answer, answer_basis, findings, other } = page;
  page.cover = first;
  if (!second || !other) return;
  const choices = [coverChoice(first, { answer, answer_basis, findings }), coverChoice(second, other)];
  byId("covers").replaceChildren(...choiceButtons(choices));
}

function coverChoice(words, answer) {
  return {
    pressed: words === page.cover,
    title: `Show findings, shares and kernels ${words}`,
    text: words === COUNTED ? "steady part" : "whole window",
    choose: () => {
      Object.assign(page, answer, { cover: words });
      for (const follow of afterCover) follow();
    },
  };
}

// What the findings and the kernels cover, where the reader can choose.
export function coverWords() {
  return page.covers.length > 1 ? page.cover : "";
}

/** @param {import("../types").Device} device */
export function coveredView({ views }) {
  return coveredPart(views);
}

/**
 * The figures that the reader chose; the only ones of a device whose steady part is its window.
 * @template {{ covers: string }} T
 * @param {T[]} parts
 */
export function coveredPart(parts) {
  return parts.find(({ covers }) => covers === page.cover) ?? parts[0];
}
