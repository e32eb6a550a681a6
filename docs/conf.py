"""Sphinx's settings for the book; `fdmath book` builds it from a copy of docs/ with the notebooks in lessons/."""

import html
import re

from docutils import nodes
from sphinx.transforms import SphinxTransform

import fdmath
from fdmath.workshop.book import MATHJAX

project = "fdmath"
author = copyright = "The fdmath authors"
version = release = fdmath.__version__
language = "en"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinxcontrib.bibtex"]
exclude_patterns = [".doctrees", "extra"]
html_theme = "furo"
html_title = "fdmath"
html_static_path = ["_static"]
html_extra_path = ["extra"]
html_css_files = ["book.css"]
html_copy_source = html_show_sourcelink = False
html_show_search_summary = False  # a summary is fetched, which no browser allows from disk
html_theme_options = {"source_repository": "", "navigation_with_keys": True}

# Notebooks are shown as they are stored: what nbval compares is what is read.
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"
nb_code_prompt_show = "Answer, computed by a cell"
nb_code_prompt_hide = "Fold the cell"
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

mathjax_path = MATHJAX
mathjax3_config = {"options": {"enableMenu": False}}

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True  # as they are written, not as they print

SPECIAL = re.compile(r"(``?[^`]+``?)|(\*\w+\*)|([\\*|_])")


def plain(line):
    """A line of a docstring in which code and emphasis are marked up; all else that Sphinx would read is text."""
    return SPECIAL.sub(lambda found: f"``{found[1].strip('`')}``" if found[1] else found[2] or "\\" + found[3], line)


def plain_docstring(app, what, name, obj, options, lines):
    """Nothing; the lines of the docstring are made plain in place; what it raises, and its source, begin anew."""
    apart = [["", line] if line.startswith(("Raises ", "Source: ")) else [line] for line in lines]
    lines[:] = [plain(line) for part in apart for line in part]


class DisplayedFormulas(SphinxTransform):
    """Displayed formulas reach MathJax as they are written; Sphinx would put those of several lines into `split`,
    in which TeX allows no number."""

    default_priority = 999

    def apply(self, **kwargs):
        for formula in self.document.findall(nodes.math_block):
            if not formula.get("no-wrap", formula.get("nowrap")):
                text = f"\\[{formula.astext()}\\]"
                formula["no-wrap"] = formula["nowrap"] = True
                formula.children = []
                formula += nodes.Text(text)


class ShownSentences(SphinxTransform):
    """The sentence of a figure stands below it too; a screen reader, which reads it for the image, passes it over."""

    default_priority = 999

    def apply(self, **kwargs):
        for image in list(self.document.findall(nodes.image)):
            if alt := image.get("alt"):
                sentence = f'<p class="sentence" aria-hidden="true">{html.escape(alt)}</p>'
                image.parent.insert(image.parent.index(image) + 1, nodes.raw("", sentence, format="html"))


class NamedDocuments(SphinxTransform):
    """A document that a lesson names by its path, as docs/glossary.md, is a link to its page."""

    default_priority = 999

    def apply(self, **kwargs):
        for path in list(self.document.findall(nodes.literal)):
            name = re.fullmatch(r"docs/(\w+)\.md", path.astext())
            if name and name[1] in self.env.found_docs and not isinstance(path.parent, nodes.reference):
                uri = self.app.builder.get_relative_uri(self.env.docname, name[1])
                path.replace_self(nodes.reference("", "", path.deepcopy(), internal=True, refuri=uri))


def setup(app):
    """Nothing; what the book adds to Sphinx is registered."""
    app.connect("autodoc-process-docstring", plain_docstring)
    for transform in DisplayedFormulas, ShownSentences, NamedDocuments:
        app.add_transform(transform)
