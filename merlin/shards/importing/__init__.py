"""Data made by anything becomes a data set: any HDF5, NumPy, CSV or Parquet files, and a small schema."""
