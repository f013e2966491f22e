// What the page was given: figures, names and places, read from the JSON in the document.
export const page = { looks: [], names: [] };
