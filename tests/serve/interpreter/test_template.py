"""Which variables of a chat template a request may set."""

import pytest

from serve.interpreter.template import variables

THINKS_OR_NOT = "{% if add_generation_prompt and enable_thinking is defined %}{{ messages }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (THINKS_OR_NOT, {"enable_thinking"}),
        ("{{ messages }}", set()),
        ("{%- generation -%}{{ messages }}{% endgeneration %}{{ bos_token }}{{ budget }}", {"budget"}),
        ("{% for m in messages %}{% break %}{% endfor %}{{ raise_exception(range(tools)) }}", set()),
        ("{% if %}", set()),
        (None, set()),
        ({"default": "{{ x }}", "tool_use": "{{ y }}"}, {"x"}),
        ({"rag": "{{ x }}"}, set()),
    ],
)
def test_the_variables_of_a_template_are_those_that_nobody_else_sets(template, names):
    assert variables(template) == names
