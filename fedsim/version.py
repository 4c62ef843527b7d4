"""The version of fedsim, which run folders and reports contain."""

__version__ = "0.2.0"
