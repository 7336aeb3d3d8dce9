"""What a shard file proves of itself: its stored bytes and its rows, held against its sidecar."""
