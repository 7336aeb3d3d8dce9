"""From the outputs of tasks to bundles, shards and a manifest."""
