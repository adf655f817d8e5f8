"""Which logits a loss on sampled answers has the model make."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from pasta.interpreter import IGNORE
from pasta.training.permitted import permitted_log_probs, scored_columns
from tests.support.models import CONFIGS


@pytest.mark.parametrize("family", CONFIGS)
def test_a_model_makes_the_logits_of_the_columns_that_it_is_asked_for(family: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[family]).eval()
    token_ids = torch.randint(5, 100, (2, 12))
    labels = torch.full((2, 12), IGNORE)
    labels[0, 3:6] = labels[1, 5] = labels[1, 9] = 7
    columns = scored_columns(labels)
    assert columns.tolist() == [3, 4, 5, 9]
    with torch.no_grad():
        whole, asked = (model(token_ids, **kept).logits for kept in ({}, {"logits_to_keep": columns}))
    torch.testing.assert_close(asked, whole[:, columns])


def test_logits_of_other_columns_are_refused() -> None:
    labels = torch.tensor([[IGNORE, 3, 4, IGNORE]])
    nothing, forbidden = torch.zeros_like(labels), torch.zeros(1, 8, dtype=torch.bool)
    with pytest.raises(ValueError, match="expected those of 1 rows, 2 columns"):
        permitted_log_probs(torch.zeros(1, 4, 8), labels, nothing, forbidden)
