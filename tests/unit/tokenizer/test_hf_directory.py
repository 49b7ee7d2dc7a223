import json
from pathlib import Path
from typing import Any

import pytest

from aphrodited.errors import ModelLoadError
from aphrodited.tokenizer.hf_directory import read_directory
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_llama_dir, write_tiny_tokenizer


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_tiny_llama_dir(tmp_path / "model", weights=False)


def test_a_directory_gives_its_tokenizer_and_facts(model_dir: Path) -> None:
    fast, facts = read_directory(model_dir)
    assert fast.encode("<|im_end|>").ids == [2]
    assert facts.special_tokens["eos_token"] == "<|im_end|>"
    assert facts.bos_token_id == 1
    assert facts.eos_token_ids == (2,)
    assert facts.chat_templates == {"default": CHAT_TEMPLATE}


def test_every_eos_id_of_every_file_counts_once(model_dir: Path) -> None:
    write_json(model_dir / "generation_config.json", {"eos_token_id": [2, 0]})
    write_json(model_dir / "config.json", {"eos_token_id": 7})
    assert read_directory(model_dir)[1].eos_token_ids == (2, 0, 7)


def test_tokenizer_json_is_enough(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    _, facts = read_directory(tmp_path)
    assert facts.special_tokens == {}
    assert facts.bos_token_id is None
    assert facts.eos_token_ids == ()
    assert facts.chat_templates == {}


def test_roles_may_be_objects_and_may_come_from_the_older_file(model_dir: Path) -> None:
    write_json(model_dir / "tokenizer_config.json", {"eos_token": {"content": "<|im_end|>"}, "bos_token": None})
    write_json(model_dir / "special_tokens_map.json", {"bos_token": "<|endoftext|>", "eos_token": "other"})
    _, facts = read_directory(model_dir)
    assert facts.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert facts.bos_token_id == 0


def test_templates_may_be_named_in_the_config(model_dir: Path) -> None:
    templates = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    write_json(model_dir / "tokenizer_config.json", {"chat_template": templates})
    assert read_directory(model_dir)[1].chat_templates == {"default": "D", "tool_use": "T"}


def test_template_files_win_over_the_config(model_dir: Path) -> None:
    write_json(model_dir / "chat_template.json", {"chat_template": "from json"})
    assert read_directory(model_dir)[1].chat_templates == {"default": "from json"}
    (model_dir / "chat_template.jinja").write_text("from jinja")
    (model_dir / "additional_chat_templates").mkdir()
    (model_dir / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert read_directory(model_dir)[1].chat_templates == {"default": "from jinja", "tool_use": "tools"}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", b"{", "tokenizer.json: is damaged"),
        ("tokenizer.json", b"\xff", "tokenizer.json: is damaged"),
        ("tokenizer_config.json", b"[1]", "tokenizer_config.json: is not a JSON object"),
        ("tokenizer_config.json", b'{"chat_template": 1}', "tokenizer_config.json: chat_template is neither"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "x"}]}', "chat_template is neither"),
        ("generation_config.json", b"{'", "generation_config.json: is not a JSON object"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja: cannot be read"),
    ],
)
def test_a_damaged_directory_is_a_load_error_that_names_the_file(
    model_dir: Path, name: str, content: bytes | None, complaint: str
) -> None:
    if content is None:
        (model_dir / name).unlink()
    else:
        (model_dir / name).write_bytes(content)
    with pytest.raises(ModelLoadError, match=complaint) as caught:
        read_directory(model_dir)
    assert str(model_dir) in str(caught.value)
