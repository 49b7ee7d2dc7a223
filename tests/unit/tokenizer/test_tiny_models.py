import json
from pathlib import Path

from tests.support.tiny_models import (
    EOS_TOKEN_ID,
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    build_tiny_tokenizer,
    write_tiny_llama_dir,
    write_tiny_neox_dir,
)


def test_the_tiny_tokenizer_has_its_size_and_special_ids() -> None:
    tokenizer = build_tiny_tokenizer()
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert [tokenizer.token_to_id(text) for text in SPECIAL_TOKENS] == [0, 1, 2]


def test_a_directory_without_weights_has_the_files_of_a_model(tmp_path: Path) -> None:
    path = write_tiny_llama_dir(tmp_path / "llama", weights=False, vocab_size=400)
    assert sorted(p.name for p in path.iterdir()) == [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    config = json.loads((path / "config.json").read_text())
    assert config["vocab_size"] == 400
    assert config["eos_token_id"] == EOS_TOKEN_ID


def test_transformers_loads_both_tiny_models_with_every_weight_in_place(tmp_path: Path) -> None:
    import transformers

    for path in (write_tiny_llama_dir(tmp_path / "llama"), write_tiny_neox_dir(tmp_path / "neox")):
        _, report = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
