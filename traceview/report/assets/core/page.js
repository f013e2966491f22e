// What the page was given: figures, names and places, read from the JSON in the document.
/** @type {import("../types").Page} */
export const page = Object.assign(Object.create(null), { looks: [], names: [] });
