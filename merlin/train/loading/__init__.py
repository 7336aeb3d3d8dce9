"""From shards to normalised batches: order, gathering, reading ahead."""
