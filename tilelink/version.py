"""The version, in its one place: the build, the caches and `tilelink.__version__` read it here."""

__version__ = "0.1.0"
