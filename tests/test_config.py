"""The configuration: precedence, validation, and that no message shows a secret."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from pgtide.config import Config, Source, load_config, parse_duration
from pgtide.errors import ConfigError
from pgtide.schema import TableName

DSN = "postgresql://me@db.example:5433/shop"
SECRET = "hunter2hunter2"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes pgtide.yaml into an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def write(content: str) -> Path:
        path = tmp_path / "pgtide.yaml"
        path.write_text(content)
        return path

    return write


def load(path: Path | None = None, **more) -> Config:
    return load_config(path, **{"environ": {}, **more})


def refusal(path: Path | None = None, **more) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path, **more)
    return caught.value


def dsn_of(config: Config) -> str:
    return config.source.dsn.get_secret_value()


def test_a_source_is_enough(write):
    config = load(write(f"source: {{dsn: '{DSN}'}}"))
    assert dsn_of(config) == DSN
    assert (config.source.slot, config.source.publication) == ("pgtide_shop", "pgtide_shop")
    assert config.journal.path == Path("journal")
    assert config.pipelines == ()


def test_pgtide_yaml_of_the_working_directory_is_found(write):
    write(f"source: {{dsn: '{DSN}', slot: mine}}")
    assert load().source.slot == "mine"


def test_without_any_source_the_error_says_how_to_give_one(write):
    write("")
    error = refusal()
    assert "source" in (error.detail or "")
    assert "--dsn" in (error.hint or "")


def test_an_option_wins_over_the_environment_and_that_over_the_file(write):
    path = write("source: {dsn: 'dbname=file'}")
    environ = {"PGTIDE_SOURCE_DSN": "dbname=environment", "POSTGRES_DB": "compose"}
    assert dsn_of(load(path, dsn="dbname=option", environ=environ)) == "dbname=option"
    assert dsn_of(load(path, environ=environ)) == "dbname=environment"
    assert dsn_of(load(path, environ={"POSTGRES_DB": "compose"})) == "dbname=file"
    path.write_text("")
    assert conninfo_to_dict(dsn_of(load(path, environ={"POSTGRES_DB": "compose"}))) == {"dbname": "compose"}


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20))
def test_any_password_survives_the_way_through_the_environment(password):
    config = load_config(Path("/dev/null"), environ={"POSTGRES_HOST": "db", "POSTGRES_PASSWORD": password})
    assert conninfo_to_dict(dsn_of(config)) == {"host": "db", "password": password}


def test_secrets_come_from_the_environment_or_a_file(write, tmp_path, monkeypatch):
    monkeypatch.setenv("THE_DSN", DSN)
    (tmp_path / "password").write_text(f"{SECRET}\n")
    config = load(write(f"source: {{dsn: {{env: THE_DSN}}, password: {{file: {tmp_path / 'password'}}}}}"))
    assert dsn_of(config) == DSN
    assert config.source.password is not None
    assert config.source.password.get_secret_value() == SECRET


def test_a_missing_reference_is_named(write):
    error = refusal(write("source: {dsn: {env: PGTIDE_NOT_SET_ANYWHERE}}"))
    assert "source.dsn: environment variable PGTIDE_NOT_SET_ANYWHERE is not set" in (error.detail or "")
    error = refusal(write("source: {dsn: {file: /does/not/exist}}"))
    assert "/does/not/exist" in (error.detail or "")
    error = refusal(write("source: {dsn: {vault: x}}"))
    assert "{env: NAME}" in (error.detail or "")


def test_neither_repr_nor_text_of_the_configuration_shows_a_secret(write):
    config = load(write(f"source: {{dsn: 'postgresql://me:{SECRET}@h/db', password: {SECRET}}}"))
    for text in (repr(config), str(config), config.model_dump_json(), str(config.model_dump())):
        assert SECRET not in text


# Each of these is a mistake with a secret in the wrong place.
MISTAKES = [
    f"source: {{dsn: [{SECRET}]}}",
    f"source: {{dsn: {{{SECRET}: x}}}}",
    f"source: {{dsn: '{SECRET}'}}",
    f"source: {{dsn: '{SECRET}', slot: a, publication: b}}",
    f"source: {{dsn: 'host=h password {SECRET}', slot: a, publication: b}}",
    f"source: {{dsn: 'dbname=d', password: [{SECRET}]}}",
    f"source:\n  dsn: dbname=d\n  password: *{SECRET}\n",
    f"source:\n  dsn: dbname=d\n  password: !{SECRET} x\n",
    f"source:\n  dsn: dbname=d\n  password: '{SECRET}\n",
    f"source:\n  dsn: dbname=d\n  password: &{SECRET} x: y\n",
    f"source:\n  dsn: dbname=d\n  password: %{SECRET}\n",
    f"source:\n  dsn: dbname=d\n  password: 'a' {SECRET}\n",
]


@pytest.mark.parametrize("content", MISTAKES)
def test_no_error_shows_a_secret(write, content):
    assert SECRET not in str(refusal(write(content)))


def test_a_secret_file_that_is_not_text_is_refused_without_showing_it(write, tmp_path):
    (tmp_path / "password").write_bytes(b"abc\xff")
    error = refusal(write(f"source: {{dsn: {DSN}, password: {{file: {tmp_path / 'password'}}}}}"))
    assert "0xff" not in str(error)
    assert "source.password" in str(error)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("source: {dsnn: x, dsn: dbname=d}", "unknown key source.dsnn, did you mean dsn?"),
        ("source: {dsn: dbname=d}\npipeline: []", "unknown key pipeline, did you mean pipelines?"),
        ("source: {dsn: dbname=d}\njournal: {retain: 1h}", "unknown key journal.retain, did you mean retention?"),
        ("source: {dsn: dbname=d, zzz: 1}", "unknown key source.zzz (known: dsn"),
        ("source: {dsn: dbname=d, slot: Upper}", "source.slot: use 1 to 63 lowercase letters"),
        ("source: {dsn: dbname=d, slot: ''}", "source.slot: use 1 to 63 lowercase letters"),
        (f"source: {{dsn: dbname=d, slot: {'a' * 64}}}", "source.slot: use 1 to 63 lowercase letters"),
        ("source: {dsn: dbname=d}\njournal: {retention: 5}", "journal.retention: not a duration"),
        ("source: {dsn: dbname=d}\npipelines: [{name: a}]", "pipelines.0.sink: field required"),
        (
            "source: {dsn: dbname=d}\npipelines: [{name: a, sink: {type: delta, path: x, pth: y}}]",
            "unknown key pipelines.0.sink.pth, did you mean path?",
        ),
        (
            "source: {dsn: dbname=d}\npipelines: [{name: a, sink: {type: delta, path: x}},"
            " {name: a, sink: {type: delta, path: y}}]",
            "pipeline name used twice: a",
        ),
        ("[1, 2]", "keys and values"),
        ("just text", "keys and values"),
    ],
)
def test_a_mistake_is_named_with_its_place(write, content, problem):
    error = refusal(write(content))
    assert problem in (error.detail or "")
    assert "pgtide.yaml" in error.message


def test_all_mistakes_are_told_at_once(write):
    error = refusal(write("source: {dsn: dbname=d, slot: A, publication: B, snapshot_readers: 0}\nx: 1"))
    assert (error.detail or "").count("; ") == 3


def test_a_file_that_cannot_be_read_is_named(write, tmp_path):
    error = refusal(tmp_path / "absent.yaml")
    assert "absent.yaml" in error.message
    assert "No such file" in (error.detail or "")
    error = refusal(write("source: {dsn: [}"))
    assert "line 1, column 16" in (error.detail or "")
    (tmp_path / "pgtide.yaml").write_bytes(b"\xff\xfe\x00")
    assert "pgtide.yaml" in refusal().message


def test_only_a_local_directory_is_taken_for_a_journal(write):
    path = write(f"source: {{dsn: '{DSN}'}}\njournal: {{url: 'file:///var/lib/pgtide'}}")
    assert load(path).journal.path == Path("/var/lib/pgtide")
    error = refusal(write(f"source: {{dsn: '{DSN}'}}\njournal: {{url: 's3://bucket/journal'}}"))
    assert "journal.url" in (error.detail or "")


def test_a_dsn_that_is_none_is_refused_before_anything_starts(write):
    for names in ("", ", slot: a, publication: b"):
        error = refusal(write(f"source: {{dsn: 'this is no dsn'{names}}}"))
        assert "source.dsn is not a Postgres connection string" in str(error)


@pytest.mark.parametrize(
    ("dsn", "slot"),
    [
        ("dbname=Shop-1", "pgtide_shop_1"),
        ("postgresql://me@h/%C3%A9t%C3%A9", "pgtide__t_"),
        ("user=alice", "pgtide_alice"),
        ("host=h", "pgtide_postgres"),
        (f"dbname={'x' * 63}", "pgtide_" + "x" * 56),
    ],
)
def test_the_slot_is_named_after_the_database(write, monkeypatch, dsn, slot):
    monkeypatch.delenv("PGDATABASE", raising=False)
    write("")
    config = load(dsn=dsn)
    assert (config.source.slot, config.source.publication) == (slot, slot)


def test_a_given_slot_keeps_the_default_publication(write):
    config = load(write(f"source: {{dsn: '{DSN}', slot: other}}"))
    assert (config.source.slot, config.source.publication) == ("other", "pgtide_shop")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10), ("30m", 1800), ("24h", 86400), ("7d", 604800), ("1.5h", 5400), (" 2 s ", 2)],
)
def test_durations_have_units(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("value", ["10", "s", "10 fortnights", "-1s", "1h30m", "", 5, None, 1.5, [1]])
def test_anything_else_is_not_a_duration(value):
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("globs", "selected"),
    [
        (("*.*",), {"public.a", "public.b", "sales.a", 'odd.we"i.rd'}),
        (("public.*",), {"public.a", "public.b"}),
        (("*.*", "!public.*"), {"sales.a", 'odd.we"i.rd'}),
        (("!public.a", "*.*"), {"public.a", "public.b", "sales.a", 'odd.we"i.rd'}),
        (("*.*", "!public.*", "public.a"), {"public.a", "sales.a", 'odd.we"i.rd'}),
        (("*.a",), {"public.a", "sales.a"}),
        (("PUBLIC.A",), set()),
        ((), set()),
    ],
)
def test_the_last_glob_that_matches_decides(globs, selected):
    names = [TableName("public", "a"), TableName("public", "b"), TableName("sales", "a"), TableName("odd", 'we"i.rd')]
    source = Source.model_validate({"dsn": DSN, "tables": globs})
    assert {str(name) for name in names if source.selects(name)} == selected


def test_a_configuration_survives_pickling_with_its_secrets(write):
    config = load(write(f"source: {{dsn: 'postgresql://me:{SECRET}@h/db'}}"))
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert SECRET in dsn_of(again)


def test_the_defaults_are_valid_as_written_out(write):
    config = load(write(f"source: {{dsn: '{DSN}'}}"))
    document = yaml.safe_load(config.model_dump_json(exclude={"journal": {"retention"}}))
    document["source"]["dsn"] = DSN
    document["source"].pop("password")
    assert load(write(yaml.safe_dump(document))) == config


def test_an_unescaped_at_sign_in_a_dsn_is_named_without_showing_it(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(None, dsn="postgresql://user:pa@hidden@db.example/shop", environ={})
    assert "not escaped" in caught.value.message
    assert "hidden" not in str(caught.value)
