// The timeline as a picture for paper.
import { queryAll, byId, context2d, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { cssColour } from "../core/palette.js";
import { view } from "./state.js";

// The visible labels, axis and marks under the same heading as a chart.
export function timelinePicture() {
  const ratio = devicePixelRatio || 1,
    side = byId("labels").offsetWidth,
    top = 56,
    axis = byId("scroll").offsetTop;
  const canvas = el("canvas", {
    width: Math.round((side + view.width) * ratio),
    height: Math.round((top + axis + view.height) * ratio),
  });
  const pen = context2d(canvas);
  pen.scale(ratio, ratio);
  pen.fillStyle = cssColour("--card");
  pen.fillRect(0, 0, side + view.width, top + axis + view.height);
  pen.textBaseline = "middle";
  const write = (text, x, y, weight, colour, width) => {
    pen.font = `${weight} system-ui, sans-serif`;
    pen.fillStyle = cssColour(colour);
    pen.fillText(text, x, y, width);
  };
  write("Timeline", 10, 18, "16px", "--ink");
  write(`${page.file}, ${byId("range").textContent}`, 10, 39, "12px", "--soft");
  pen.drawImage(byId("axis", HTMLCanvasElement), side, top, view.width, axis);
  pen.drawImage(byId("canvas", HTMLCanvasElement), side, top + axis, view.width, view.height);
  for (const { text, middle } of labelsInSight()) write(text, 10, top + axis + middle, "12px", "--ink", side - 16);
  return canvas;
}

function labelsInSight() {
  const above = byId("scroll").getBoundingClientRect().top;
  const words = (label) =>
    [...label.children]
      .filter((one) => !one.matches(".tools"))
      .map((one) => one.textContent.trim())
      .filter(Boolean)
      .join("  ");
  return [...queryAll("#labels .label")]
    .map((label) => ({
      text: words(label),
      middle: label.getBoundingClientRect().top + label.offsetHeight / 2 - above,
    }))
    .filter(({ middle }) => middle > 0 && middle < view.height);
}
