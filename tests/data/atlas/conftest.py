"""One atlas tokenizer for all tests of the atlas."""

import pytest
from hypothesis import settings

from pasta.data.atlas.tokenizer import train_tokenizer
from pasta.lang import Codec

settings.register_profile("atlas", max_examples=60)
settings.load_profile("atlas")


@pytest.fixture(scope="session")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    return Codec(train_tokenizer(tmp_path_factory.mktemp("tokenizer")))
