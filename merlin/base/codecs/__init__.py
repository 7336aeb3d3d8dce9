"""The codecs: one file each; merlin.base.compression lists them."""
