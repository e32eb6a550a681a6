"""`python -m fdmath.workshop.figures`: draws the figures of README anew from measurements made now."""

import argparse
import sys

from fdmath.bench.headline import headline, statements
from fdmath.plotting import claim, headline_figure, style
from fdmath.workshop import repository


def headline_alt(panels):
    """The text of the headline figure: its statements, each checked against the measurements."""
    return "; ".join(claim(*statement) for statement in statements(panels)) + "."


def main(argv=None):
    """The exit code: 0 if every statement of the figure holds, else 1. Writes docs/figures/headline.png."""
    argparse.ArgumentParser(prog="python -m fdmath.workshop.figures", description=__doc__).parse_args(argv)
    panels = headline()
    path = repository() / "docs" / "figures" / "headline.png"
    with style():
        headline_figure(panels).savefig(path, metadata={"Software": None})
    print(f"{path.relative_to(repository())}: {headline_alt(panels)}")
    return 0 if all(holds for holds, _ in statements(panels)) else 1


if __name__ == "__main__":
    sys.exit(main())
