// Saves all ranks as a PNG file.
import { context2d, el } from "../core/dom.js";
import { fileName, save } from "../core/export.js";
import { AXIS, paint } from "./ranks.js";
import { map } from "./state.js";

// The rows are as high as fits a picture.
export async function savePicture() {
  const wide = 1400,
    height = Math.max(1, Math.min(map.height, 4000 / map.order.length)),
    high = Math.ceil(AXIS + map.order.length * height);
  const canvas = el("canvas", { width: wide, height: high });
  paint(context2d(canvas), wide, high, 0, height);
  save(fileName("ranks", "png"), await new Promise((resolve) => canvas.toBlob(resolve, "image/png")));
}
