"""Fills the templates of Jinja2. In HTML every value is escaped, unless it is `Markup`."""

from pathlib import Path

import jinja2

from fuzz.cli import escape_controls

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=jinja2.select_autoescape(["html.j2"]),  # the rest is Markdown and Python
)


def render(template: str, **values: object) -> str:
    """The filled template, without characters that control a terminal. Raises jinja2.UndefinedError for a name without
    a value."""
    return escape_controls(_TEMPLATES.get_template(template).render(**values))
