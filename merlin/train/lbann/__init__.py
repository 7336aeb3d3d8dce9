"""A training run as a script for LBANN: the same model, data and hyper-parameters."""
