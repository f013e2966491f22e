"""A capture measured in parts, so that memory does not bound its size (docs/design.md "Parts")."""
