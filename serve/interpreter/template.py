"""What a request may say to a model's chat template."""

import re
from typing import Any

#: A tag of transformers' own, which marks what assistants say for training.
_GENERATION = re.compile(r"{%[-+]?\s*(end)?generation\s*[-+]?%}")
#: Variables that are not a request's: what every template is given.
_GIVEN = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "raise_exception", "strftime_now"}
)


def variables(template: Any) -> frozenset[str]:
    """The variables of a chat template besides those that every template is given; none if it is no template.

    Names that the template sets itself in some branches are among them.
    """
    from jinja2 import Environment, TemplateSyntaxError, meta  # as late as transformers imports it

    if isinstance(template, dict):  # several by name: transformers takes this one
        template = template.get("default")
    if not isinstance(template, str):
        return frozenset()
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        read = meta.find_undeclared_variables(environment.parse(_GENERATION.sub("", template)))
    except TemplateSyntaxError:  # said when a prompt is rendered
        return frozenset()
    return frozenset(
        name for name in read - _GIVEN - environment.globals.keys() if not name.endswith("_token")
    )
