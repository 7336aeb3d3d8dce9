"""Files with one row per sample: delimited text and Parquet, opened without reading them as a whole."""
