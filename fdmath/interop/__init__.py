"""Adapters to other libraries, each imported only when it is asked for by name.

Importing this package loads nothing else.  ``smollm2`` holds the two commands that fetch the model
and capture its attention inputs; ``fetch``, ``criteria`` and ``capture`` do their work.
"""
