"""Number formats and oracles of the serving kernels.

Here today, in NumPy on the CPU:

* ``formats``: MXFP8 and MXFP4 encoding and decoding, exact to the last bit;
* ``router``: the expert router (square root of softplus, top-k, ties to the lower id).

They are what a GPU kernel is judged against; no GPU kernel lives here yet. Importing a module of this package needs
the ``kernels`` extra of ``sparkmesh-runtime`` (NumPy); importing the package itself needs nothing.
"""
