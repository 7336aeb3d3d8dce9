"""From shards to arrays, batches, tables and SQL."""
