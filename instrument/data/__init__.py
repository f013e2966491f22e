"""Host batches: data sets, their order, collation and loading."""
