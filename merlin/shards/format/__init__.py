"""What is on the disk: sidecars and manifests, digests, statistics, splits, row numbers, codecs."""
