"""Run as a script: reads MDS exports with MosaicML's own library and writes what it found, each as a pickle-free .npz.

The library imports clouds' and models' packages that reading local files never touches; they are stand-ins here.
Arguments: directory of an export, .npz to write, and so on. A ragged or text column is written sample by sample.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

UNUSED = (
    "transformers", "torchvision", "boto3", "botocore", "google", "oci", "azure", "paramiko", "matplotlib", "snappy",
    "brotli", "huggingface_hub",
)  # fmt: skip


class Nothing(types.ModuleType):
    """A module in which every name is an exception type, so that it can be caught, and never is."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Nothing(spec.name)

    def exec_module(self, module):
        pass


def main(*pairs: str) -> None:
    sys.meta_path.insert(0, Finder())
    for directory, out in zip(pairs[::2], pairs[1::2], strict=True):
        read(directory, out)


def read(directory: str, out: str) -> None:
    import numpy as np
    from streaming import StreamingDataset

    data = StreamingDataset(local=directory, shuffle=False, batch_size=1)
    found = {}
    for i in range(data.num_samples):
        for name, value in data[i].items():
            found[f"{i}:{name}"] = np.asarray(value)
    found["num"] = np.asarray(data.num_samples)
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
