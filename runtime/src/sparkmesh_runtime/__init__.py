"""What runs inside a rank's container. It shares one file format with the collection, the rank spec, and no code."""

__version__ = "0.1.0"
