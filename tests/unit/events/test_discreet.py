"""Secrets are not written down; everyday words of training scripts are."""

import pytest

from nandiag.events.discreet import environment, is_secret, text, words


@pytest.mark.parametrize(
    "name",
    [
        "--token", "--hf_token", "--hub-token", "HF_TOKEN", "--use-auth-token", "--password", "--db.password",
        "--wandb-key", "WANDB_API_KEY", "wandbApiKey", "--api_key", "--apiKey", "+logger.api_key",
        "AWS_SECRET_ACCESS_KEY", "--secret",
        "--aws-access-key", "--private-key", "--key", "--passphrase", "--credentials", "--pat", "accessToken",
    ],
)  # fmt: skip
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "--tokenizer", "--max-tokens", "--num_tokens", "--pad-token", "--eos_token", "--token-dim", "--pad_token_id",
        "--sort-key", "--image-key", "--key-dim", "--text_key", "--author", "--authors", "--lr", "", "--", "--keep",
        "--patience", "--path", "--passes", "--tokens-per-batch", "--mask-token", "--keyboard", "--patch", "--monkey",
    ],
)  # fmt: skip
def test_everyday_names(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("train.py --lr 0.1 --token abc", "train.py --lr 0.1 --token ***"),
        ("--password=abc x", "--password=*** x"),
        ("--password --lr 3", "--password --lr 3"),
        ("--key -5", "--key ***"),
        ("+logger.api_key=abc", "+logger.api_key=***"),
        ("HF_TOKEN=abc python train.py", "HF_TOKEN=*** python train.py"),
        ("--data https://me:pass@host/x", "--data https://***@host/x"),
        ("--data s3://bucket/a@b", "--data s3://bucket/a@b"),
        ("--url https://host/blob?sv=1&sig=abc%2B&x=2", "--url https://host/blob?sv=1&sig=***&x=2"),
        ("--header Authorization:xyz", "--header Authorization:***"),
        ("hf_abcdefghijklmnopqrst", "***"),
        ("a=sk-abcdefghijklmnopqrstuvwx", "a=***"),
        ("ghp_abcdefghijklmnopqrstuvwxyz AKIAIOSFODNN7EXAMPLE", "*** ***"),
        ("task-abcdefghijklmnopqrst risk-averse-optimiser-24", "task-abcdefghijklmnopqrst risk-averse-optimiser-24"),
        ("--tokenizer gpt2 --max-tokens 5", "--tokenizer gpt2 --max-tokens 5"),
        ("--ckpt /data/key/model.pt", "--ckpt /data/key/model.pt"),
        ("C:/secret.py", "C:/secret.py"),
    ],
)  # fmt: skip
def test_words_of_a_command(given, shown):
    assert " ".join(words(given.split())) == shown


def test_a_bearer_in_one_word():
    assert text("authorization header: Bearer abc.def") == "authorization header: Bearer ***"


def test_variables():
    assert environment({"PET_RDZV_CONF": "user:x", "NCCL_DEBUG": "INFO", "NCCL_AUTH_TOKEN": "abc"}) == {
        "PET_RDZV_CONF": "user:x", "NCCL_DEBUG": "INFO", "NCCL_AUTH_TOKEN": "***",
    }  # fmt: skip
