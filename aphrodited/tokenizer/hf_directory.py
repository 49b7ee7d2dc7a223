"""Reads the tokenizer of a model directory in the Hugging Face layout.

    tokenizer.json                          the tokenizer itself; required
    tokenizer_config.json                   roles (bos_token, ...) and perhaps the chat templates
    special_tokens_map.json                 roles, where tokenizer_config.json has none (older directories)
    chat_template.jinja, chat_template.json,
    additional_chat_templates/*.jinja       templates; these files win over tokenizer_config.json
    generation_config.json, config.json     which ids end an answer

Reads data only: no code of the directory is ever run. Knows nothing of GGUF.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as FastTokenizer

from aphrodited.errors import ModelLoadError
from aphrodited.tokenizer.facts import DEFAULT_TEMPLATE, TokenizerFacts

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_directory(path: Path) -> tuple[FastTokenizer, TokenizerFacts]:
    """The tokenizer of a model directory and what its other files say about it.

    Raises ModelLoadError, naming the file that is missing, damaged or not understood.
    """
    tokenizer = _read_tokenizer(path / "tokenizer.json")
    config = _read_object(path / "tokenizer_config.json")
    special_tokens = _roles(_read_object(path / "special_tokens_map.json")) | _roles(config)
    bos_token = special_tokens.get("bos_token")
    return tokenizer, TokenizerFacts(
        special_tokens=special_tokens,
        bos_token_id=tokenizer.token_to_id(bos_token) if bos_token is not None else None,
        eos_token_ids=_eos_token_ids(path, tokenizer, special_tokens.get("eos_token")),
        chat_templates=_templates_in_config(path, config) | _templates_in_files(path),
    )


def _read_tokenizer(path: Path) -> FastTokenizer:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ModelLoadError(
            f"{path} is missing; only directories with a tokenizer.json are supported "
            "(transformers' save_pretrained writes one)"
        ) from None
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return FastTokenizer.from_buffer(content)
    except Exception as error:
        raise ModelLoadError(f"{path}: is damaged or not supported: {error}") from error


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: is not a JSON object: {error}") from error


def _roles(config: dict[str, Any]) -> dict[str, str]:
    """Role to text; a role's value is the text, or an object that has it as `content`."""
    texts = {
        role: value.get("content") if isinstance(value, dict) else value
        for role, value in config.items()
        if role in _ROLES
    }
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _eos_token_ids(path: Path, tokenizer: FastTokenizer, eos_token: str | None) -> tuple[int, ...]:
    ids = [] if eos_token is None else [tokenizer.token_to_id(eos_token)]
    for name in ("generation_config.json", "config.json"):
        value = _read_object(path / name).get("eos_token_id")
        ids += value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(token_id for token_id in ids if isinstance(token_id, int)))


def _templates_in_config(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """`chat_template` is one template, or a list of {"name": ..., "template": ...}."""
    match config.get("chat_template"):
        case None:
            return {}
        case str() as source:
            return {DEFAULT_TEMPLATE: source}
        case [*entries] if all(_is_named_template(entry) for entry in entries):
            return {entry["name"]: entry["template"] for entry in entries}
        case _:
            raise ModelLoadError(
                f"{path / 'tokenizer_config.json'}: chat_template is neither a string nor a list of named templates"
            )


def _is_named_template(entry: object) -> bool:
    match entry:
        case {"name": str(), "template": str()}:
            return True
        case _:
            return False


def _templates_in_files(path: Path) -> dict[str, str]:
    templates: dict[str, str] = {}
    in_json = _read_object(path / "chat_template.json").get("chat_template")
    if isinstance(in_json, str):
        templates[DEFAULT_TEMPLATE] = in_json
    files = {file.stem: file for file in sorted((path / "additional_chat_templates").glob("*.jinja"))}
    if (path / "chat_template.jinja").exists():
        files[DEFAULT_TEMPLATE] = path / "chat_template.jinja"
    for name, file in files.items():
        try:
            templates[name] = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"{file}: cannot be read: {error}") from error
    return templates
