"""The collect step a user of the peer writes: read every JSON, write one HDF5 file."""

import glob
import json
import os
import sys

import h5py
import numpy as np

root, pattern, out = sys.argv[1:]
rows = []
for path in sorted(glob.glob(os.path.join(root, pattern, "result.json"))):
    with open(path) as f:
        d = json.load(f)
    rows.append((d["id"], d["a"], d["b"]))
table = np.array(rows)
with h5py.File(out, "w") as f:
    f["sample_id"] = table[:, 0].astype("int64")
    f["a"] = table[:, 1]
    f["b"] = table[:, 2]
print(len(rows))
