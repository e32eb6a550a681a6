"""A progress bar over cells of a matrix, where stderr is a terminal and tqdm is installed; nothing elsewhere."""

import importlib.util

from fdmath import _backends as backends


class Bar:
    """A context with a bar of `total` steps; `step` is the `progress` that verify and kill_matrix call."""

    def __init__(self, total):
        here = importlib.util.find_spec("tqdm")
        self.bar = backends.load("tqdm:tqdm")(total=total, disable=None, leave=False) if here else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.close()

    def step(self, law, subject):
        """Nothing; the bar is one further, and says what is asked of which."""
        self.advance(f"{subject.name}: {law.name}")

    def advance(self, text):
        """Nothing; the bar is one further and shows the text."""
        if self.bar is not None:
            self.bar.set_description(text)
            self.bar.update()


__all__ = ["Bar"]
