"""The embedded lab: stand-ins for three or four DGX Sparks on one Linux machine, run as ``python -m lab``."""
