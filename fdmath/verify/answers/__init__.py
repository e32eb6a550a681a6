"""One module a notebook: the stub of its code exercise, the hints, the answer, and how the laws judge it."""
