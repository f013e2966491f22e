"""The timeline of the page: rows, lanes of marks, and levels of detail."""
