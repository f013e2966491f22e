"""A capture measured in time slices, so that memory does not bound its size (docs/design.md "Parts")."""
