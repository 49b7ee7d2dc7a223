import pytest

from aphrodited.api.auth import ApiKeys, check_exposure, read_keys
from aphrodited.api.error_responses import InvalidApiKeyError
from aphrodited.errors import ConfigError


def test_a_file_holds_a_key_a_line_between_comments(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# ours\n\n  first  \nsecond\n#third\n")
    keys = read_keys(path)
    for key in ("first", "second"):
        keys.check(f"Bearer {key}")
    for given in ("Bearer #third", "Bearer # ours", "Bearer ", "first", None):
        with pytest.raises(InvalidApiKeyError):
            keys.check(given)


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\xff\xfe"])
def test_a_file_without_a_key_is_a_mistake_of_the_operator(tmp_path, content):
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"api\.keys_file"):
        read_keys(path)


def test_no_key_is_kept_or_told():
    keys = ApiKeys(["very-secret"])
    assert "very-secret" not in repr(vars(keys))
    with pytest.raises(InvalidApiKeyError) as refused:
        keys.check("Bearer other-secret")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "has_keys", "allowed", "holds"),
    [
        ("127.0.0.1", False, False, True),
        ("::1", False, False, True),
        ("0.0.0.0", True, False, True),
        ("0.0.0.0", False, True, True),
        ("0.0.0.0", False, False, False),
        ("::", False, False, False),
        ("192.168.1.5", False, False, False),
    ],
)
def test_strangers_are_kept_out_unless_the_operator_says_otherwise(host, has_keys, allowed, holds):
    if holds:
        check_exposure(host, has_keys, allowed)
    else:
        with pytest.raises(ConfigError, match=r"api\.keys_file"):
            check_exposure(host, has_keys, allowed)
