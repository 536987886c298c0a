"""What is hidden of a value that may hold a secret, and what is not."""

from __future__ import annotations

import pytest

from rocketcrew.conf.redaction import HIDDEN, masked, masked_text, sounds_secret


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.secret.key", "fs.s3a.access.key", "fs.s3a.encryption.key", "fs.azure.account.key.me",
        "fs.azure.sas.container.me", "fs.gs.credential", "ssl.passphrase", "db.pwd", "db.pass", "trustStorePassword",
        "oauth.token", "sentry_dsn",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert sounds_secret(name)
    assert masked({name: "x"}) == {name: HIDDEN}


@pytest.mark.parametrize(
    "name",
    ["spark.sql.shuffle.partitions", "fs.s3a.aws.credentials.provider", "a.compass", "fs.s3a.endpoint", "x.sassy"],
)
def test_other_names(name: str) -> None:
    assert masked({name: "x"}) == {name: "x"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jdbc:postgresql://u:S3CRET@h/db", f"jdbc:postgresql://u:{HIDDEN}@h/db"),
        ("redis://:S3CRET@h", f"redis://:{HIDDEN}@h"),
        ("s3://KEY:S3/C:RET@bucket/table", f"s3://KEY:{HIDDEN}@bucket/table"),
        ("s3a://u:S3C'RET@b/x", f"s3a://u:{HIDDEN}@b/x"),
        ("https://ghp_S3CRET@github.com/a", f"https://{HIDDEN}@github.com/a"),
        ("https://glpat-S3CRET@gitlab.com/a", f"https://{HIDDEN}@gitlab.com/a"),
        ("https://0123456789abcdef0123@o1.sentry.io/1", f"https://{HIDDEN}@o1.sentry.io/1"),
        ("http://a:1,http://u:S3CRET@h", f"http://a:{HIDDEN}@h"),
        ("SC://S1.sc://s2:1/;token=S3CRET", f"SC://S1.sc://s2:1/;{HIDDEN}"),
        ("http://u:S3@CRET@h x@y", f"http://u:{HIDDEN}@h x@y"),
        ("http://a:1," * 90_000 + "u@h", f"http://a:{HIDDEN}@h"),
        ("sc://h:1/;token=S3CRET", f"sc://h:1/;{HIDDEN}"),
        ("sc://u:S3CRET@h:1/;user_id=S3CRET", f"sc://u:{HIDDEN}@h:1/;{HIDDEN}"),
        (
            "-Xmx1g -Dssl.trustStorePassword=S3CRET -Da=b",
            f"-Xmx1g -Dssl.trustStorePassword={HIDDEN}",
        ),
        ("jdbc:mysql://h/db?user=u&password=S3CRET", f"jdbc:mysql://h/db?user=u&password={HIDDEN}"),
        ("a=1,fs.secret.key = S3,CRET", f"a=1,fs.secret.key ={HIDDEN}"),
        ('{"fs.secret.key": "S3CRET"}', f'{{"fs.secret.key":{HIDDEN}'),
        ("password: S3CRET\nS3CRET", f"password: {HIDDEN}"),
        ("https://b/t?X-Amz-Signature=S3CRET", f"https://b/t?X-Amz-Signature={HIDDEN}"),
    ],
)
def test_places_of_secrets_in_a_text(text: str, shown: str) -> None:
    assert masked_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "tokens:paid || new", "auth_token:function", "spark://h:7077,h2:7077", "sc://h:15002", "local[2]", "/tokens/x",
        "abfss://container@account.dfs.core.windows.net/table", "thrift://h:9083", "a:9876;b:9876", "names 'tokens' twice",
        "'http://a:1', 'me@h'", '["http://a:1","me@h"]', "https://martin@h/x", "https://a_user_with_a_long_name@h/x",
        "token" * 20_000, "@" + "x://a:" * 170_000, "x://u:" + "'a" * 500_000 + " @", "sc://" * 200_000,
        "@" + "https://ghp_" * 80_000, "@" + "secret.-_x" * 100_000,  # in no time
    ],
)  # fmt: skip
def test_what_is_shown(text: str) -> None:
    assert masked_text(text) == text


def test_tables_and_lists_are_looked_through() -> None:
    given = {"fs": {"s3a": {"access": {"key": "S3CRET"}, "endpoint": "h"}}, "x": ["password=S3CRET", 1, True]}
    assert masked(given) == {
        "fs": {"s3a": {"access": {"key": HIDDEN}, "endpoint": "h"}},
        "x": [f"password={HIDDEN}", 1, True],
    }
    assert masked({"secret": {"key": ["S3CRET"]}}) == {"secret": HIDDEN}
