"""Configuration of Sphinx: ``python -m sphinx -W docs build/docs`` (see docs/README.md)."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from generate import write_all

from fedsim.common.spec import Spec
from fedsim.version import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

project = "fedsim"
author = "the fedsim authors"
copyright = author  # noqa: A001 - Sphinx's name
version = __version__
release = version
HERE = Path(__file__).parent
GALLERY = [*(HERE / "gallery").glob("plot_*.py")]

suppress_warnings = [
    "sphinx_gallery.space_in_filename",  # a clone may lie in a folder with a space
    "ref.python",  # attributes of several classes have the same name, such as a task's number
]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    *(["sphinx_gallery.gen_gallery"] if GALLERY else []),
]
exclude_patterns = ["gallery", "notebooks", "sg_execution_times.rst"]
language = "en"

myst_enable_extensions = ["deflist", "attrs_inline", "dollarmath"]
# browsers set MathML themselves: no script, and nothing from the network
html_math_renderer = "mathml"
myst_heading_anchors = 3

toc_object_entries = False  # each name has a heading
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"exclude-members": "Client, Params, model_config, model_post_init"}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("State", "Attributes")]

html_theme = "furo"
html_title = f"fedsim {__version__}"
html_static_path = ["static"]
html_css_files = ["fedsim.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "generated/gallery",
    "plot_gallery": "False",  # pictures only with -D plot_gallery=1: that runs every script
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "within_subsection_order": "FileNameSortKey",
    "remove_config_comments": True,
}

write_all()


def setup(app: "Sphinx") -> None:
    """Read docstrings as plain text with ``code``, and write formulas as MathML."""
    app.add_html_math_renderer("mathml", (_set_inline, None), (_set_block, None))
    # before napoleon reads its sections
    app.connect("autodoc-process-docstring", _as_plain_text, priority=100)
    app.connect("autodoc-process-signature", _without_keys)


def _set_inline(translator: "HTML5Translator", node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def _set_block(translator: "HTML5Translator", node: nodes.math_block) -> None:
    translator.body.append(f"<div class='math'>{tex2mathml(node.astext(), as_block=True)}</div>")
    raise nodes.SkipNode


def _without_keys(
    app: "Sphinx", what: str, name: str, thing: object, *_: object
) -> tuple[str, None] | None:
    """Show no signature for a table of a scenario, whose keys have pages."""
    if isinstance(thing, type) and issubclass(thing, Spec):
        return "", None
    return None


def _as_plain_text(
    app: "Sphinx", what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Escape the signs of markup in a docstring, except ``code``: a star or a bar is no markup."""
    if what == "data":
        lines[:1] = [lines[0].replace("``:", "`` is", 1)]  # else napoleon takes it for a type
    blocks = re.split(r"(^ *>>> [^\n]*(?:\n *\S[^\n]*)*)", "\n".join(lines), flags=re.MULTILINE)
    blocks[::2] = [_without_markup(block) for block in blocks[::2]]  # the others are doctests
    lines[:] = "".join(blocks).split("\n")


def _without_markup(text: str) -> str:
    parts = text.split("``")
    parts[::2] = [re.sub(r"([*|])|(?<=\w)_(?=\W|$)", r"\\\g<0>", part) for part in parts[::2]]
    return "``".join(parts)
