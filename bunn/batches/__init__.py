"""Batches of graphs, gathered with all that is known of each, and padded to a fixed size."""
