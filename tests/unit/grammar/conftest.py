import pytest

from aphrodited.grammar.vocabulary import build_vocabulary
from aphrodited.tokenizer.tokenizer import load_tokenizer
from tests.support.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE, write_tiny_tokenizer


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    return write_tiny_tokenizer(tmp_path_factory.mktemp("grammar"))


@pytest.fixture(scope="session")
def tokenizer(model_path):
    return load_tokenizer(model_path)


@pytest.fixture(scope="session")
def vocabulary(model_path):
    return build_vocabulary(model_path, VOCAB_SIZE, [EOS_TOKEN_ID])
