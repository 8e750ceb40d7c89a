"""Pipeline text and TOML: what they mean, how they fail, and that they round-trip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovgraft.errors import ModelFileError, SpecError
from ovgraft.passbase import Pass
from ovgraft.pipeline import Pipeline, describe_options, parse, toml
from tests.pipeline.samples import Everything, Label, lookup


def read(text: str) -> Pass:
    [item] = parse(text, lookup)
    return item


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("everything", Everything()),
        ("everything{}", Everything()),
        (" everything { flag=true\n count=7 } ", Everything(flag=True, count=7)),
        ("everything{count=-2 ratio=1e-3}", Everything(count=-2, ratio=1e-3)),
        ("everything{layers=1,3,4}", Everything(layers=(1, 3, 4))),
        ("everything{layers=2}", Everything(layers=(2,))),
        ("everything{layers=()}", Everything(layers=())),
        ("everything{layers=none maybe=none}", Everything(layers=None, maybe=None)),
        ('everything{maybe="none" word=none}', Everything(maybe="none", word="none")),
        ("everything{word=a=b,c=d}", Everything(word="a=b,c=d")),
        (r'everything{word="a \"b\"\n{}\\ \u00e9"}', Everything(word='a "b"\n{}\\ é')),
        ('everything{words=a,"b,c","()"}', Everything(words=("a", "b,c", "()"))),
        ("everything{max-bytes=64KiB}", Everything(max_bytes=65536)),
        ("everything{max-bytes=2M}", Everything(max_bytes=2 << 20)),
        ("everything{max-bytes=5B}", Everything(max_bytes=5)),
        ("everything{which=4}", Everything(which=4)),
        ("everything{pair=4,0.5}", Everything(pair=(4, 0.5))),
        ("everything{folder=/a/b}", Everything(folder=Path("/a/b"))),
    ],
)
def test_text_means(text: str, expected: Pass) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ("", "has no pass", ""),
        ("  ", "has no pass", " "),
        ("label,", "ends where the name of a pass was expected", ""),
        (",label", "unexpected ','", ","),
        ("label label", "expected ','", "l"),
        ("label}", "unexpected '}'", "}"),
        ("nonsense", "unknown pass 'nonsense'", "nonsense"),
        ("label,nonsense{a=1}", "unknown pass 'nonsense'", "nonsense"),
        ("label{to=a", "never closed", "{"),
        ("label{to}", "option 'to' has no value", "to"),
        ("label{to=}", "option 'to' expects a value before '}'", "}"),
        ("label{to=", "expects a value before the end", ""),
        ("label{to=a,}", "expects a value before '}'", "}"),
        ("label{to={a}}", "expects a value before '{'", "{"),
        ('label{to="a}', "the string is never closed", '"'),
        ('label{to="a"b}', "expected a space or '}'", "b"),
        ('label{to=a"b"}', "expected a space or '}'", '"'),
        (r'label{to="\q"}', "escape or a character", "\\"),
        ("label{=a}", "unexpected '='", "="),
        ("label{to=a to=b}", "option 'to' of 'label' is given twice", "to=b"),
        ("label{to=a, folder=b}", "expects a value before ' '", " "),
        ("label{,to=a}", "unexpected ','", ","),
        ("label{two=a}", "pass 'label' has no option 'two'", "two"),
        ("label to=a", "expected ','", "t"),
        ("everything{count=many}", "option 'count' of 'everything' expects an integer, got 'many'", "many"),
        ("everything{count=1,2}", "expects an integer, got '1,2'", "1,2"),
        ("everything{flag=maybe}", "expects true or false", "maybe"),
        ("everything{layers=1,x}", "expects integers separated by commas, or none", "1,x"),
        ("everything{mode=medium}", "expects one of fast, slow", "medium"),
        ("everything{max-bytes=huge}", "expects a size, got 'huge'", "huge"),
        ("everything{max_bytes=1}", "has no option 'max_bytes'", "max_bytes"),
        ("everything{pair=1}", "expects integers and numbers separated by commas", "1"),
        ("label,\n everything{count=x}\n,label", "expects an integer", "x"),
    ],
)
def test_errors_point_at_the_place(text: str, message: str, marked: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, lookup)
    error = caught.value
    assert message in str(error)
    assert error.text == text
    assert error.span is not None
    assert text[slice(*error.span)] == marked
    caret = error.caret()
    assert caret is not None
    line, marks = caret.split("\n")
    assert line in text
    assert marks.strip() == "^" + "~" * (max(1, len(marked)) - 1)
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("everything{layer=1}", "did you mean 'layers'?"),
        ("everything{max_bytes=1}", "did you mean 'max-bytes'?"),
        ("everything{max-bytes=huge}", "examples: 4096, 64KiB, 1MiB"),
        ("everything{layers=one}", "example: layers=1,3,4"),
        ("everything{flag=true,count=2}", "options are separated by spaces, not commas"),
        ("everything=1", "quote the text"),
        ("label{to=}", 'to="" is the empty text'),
    ],
)
def test_errors_give_a_way_out(text: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, lookup)
    assert hint in (caught.value.hint or "")


def test_defaults_are_not_written() -> None:
    assert str(Pipeline([Everything(count=3), Label(to="a b")])) == 'everything,label{to="a b"}'


def test_sizes_are_written_with_the_largest_unit_that_is_exact() -> None:
    sizes = [str(Pipeline([Everything(max_bytes=size)])) for size in (0, 1000, 1024, 3 << 20, 1 << 50)]
    assert sizes == [f"everything{{max-bytes={text}}}" for text in ("0", "1000", "1KiB", "3MiB", "1024TiB")]


def test_python_options_are_checked() -> None:
    assert Pipeline([Everything(layers=[1, 2])]) == Pipeline([Everything(layers=(1, 2))])  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"option 'layers' of 'everything' expects .*, got '1,2'"):
        Pipeline([Everything(layers="1,2")])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="made of passes"):
        Pipeline([Everything])  # type: ignore[list-item]
    with pytest.raises(SpecError, match="no pass"):
        Pipeline([])


def test_values_without_a_text_are_refused() -> None:
    with pytest.raises(SpecError, match="option 'ratio' of 'everything': no text means nan"):
        str(Pipeline([Everything(ratio=float("nan"))]))


def test_option_descriptions_come_from_the_fields() -> None:
    by_key = {option.key: option for option in describe_options(Everything)}
    assert by_key["max-bytes"].type == "a size"
    assert by_key["max-bytes"].default == "1MiB"
    assert by_key["layers"].type == "integers separated by commas, or none"
    assert by_key["layers"].default == "none"
    assert by_key["layers"].example == "1,3,4"
    assert by_key["mode"].type == "one of fast, slow"
    assert by_key["words"].default == "()"
    assert by_key["which"].type == "one of all, or an integer"
    assert by_key["count"].help == "a number"


# ---------------------------------------------------------------------------------------------- properties

odd_text = st.text(max_size=8) | st.sampled_from(
    ["none", "()", "", "true", "1", "1,2", "null", "a=b", '"', "\\", "\x7f"]
)
whole = st.integers(-(2**62), 2**62)
everything = st.builds(
    Everything,
    flag=st.booleans(),
    count=whole,
    ratio=st.floats(allow_nan=False),
    word=odd_text,
    maybe=st.none() | odd_text,
    max_bytes=st.integers(0, 2**62) | st.integers(0, 60).map(lambda power: 1 << power),
    mode=st.sampled_from(["fast", "slow"]),
    layers=st.none() | st.lists(whole, max_size=4).map(tuple),
    words=st.lists(odd_text, max_size=4).map(tuple),
    which=st.just("all") | whole,
    pair=st.tuples(whole, st.floats(allow_nan=False)),
    folder=st.none() | odd_text.filter(lambda text: "\0" not in text).map(Path),
)
pipelines = st.lists(everything | st.builds(Label, to=odd_text), min_size=1, max_size=3).map(Pipeline)


@settings(deadline=None)  # the machine may be busy
@given(pipelines)
def test_text_round_trips(pipeline: Pipeline) -> None:
    assert parse(str(pipeline), lookup) == pipeline
    assert str(parse(str(pipeline), lookup)) == str(pipeline)


@settings(deadline=None)  # the machine may be busy
@given(pipelines)
def test_toml_round_trips(pipeline: Pipeline) -> None:
    written = toml.dumps(pipeline)
    assert toml.loads(written, lookup).pipeline == pipeline
    assert toml.dumps(toml.loads(written, lookup).pipeline) == written
    assert str(toml.loads(written, lookup).pipeline) == str(pipeline)


@settings(deadline=None)  # the machine may be busy
@given(st.text(alphabet='everythinglabel{}=,"\\ \n1', max_size=40) | st.text(max_size=30))
def test_any_text_is_a_pipeline_or_one_error(text: str) -> None:
    error = None
    try:
        pipeline = parse(text, lookup)
    except SpecError as caught:
        error = caught
    if error is None:
        assert parse(str(pipeline), lookup) == pipeline
    else:
        assert error.text == text
        assert error.caret() is not None


# ---------------------------------------------------------------------------------------------- TOML


def test_toml_says_how_to_run() -> None:
    text = 'schema = 1\nverify = "each"\non-error = "skip"\nstrict = true\n\n[[pass]]\nuse = "label"\nto = "a"\n'
    file = toml.loads(text, lookup)
    assert file == toml.PipelineFile(Pipeline([Label(to="a")]), "skip", "each", True)
    assert toml.loads(toml.dumps(file.pipeline, file), lookup) == file


def test_toml_takes_native_values_and_text_for_scalars() -> None:
    text = 'schema = 1\n[[pass]]\nuse = "everything"\nlayers = [1, 2]\nmax-bytes = "1KiB"\ncount = "12"\nmaybe = {}\n'
    [item] = toml.loads(text, lookup).pipeline
    assert item == Everything(layers=(1, 2), max_bytes=1024, count=12, maybe=None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "key 'schema' expects 1, the key is missing"),
        ("schema = 2", "key 'schema' expects 1, got schema = 2"),
        ("schema = 1", "no pass"),
        ('schema = 1\nverfy = "each"', "unknown key 'verfy'"),
        ('schema = 1\nverify = "often"', "key 'verify' expects one of none, end, each, got 'often'"),
        ("schema = 1\nstrict = 1", "key 'strict' expects one of true, false, got 1"),
        ("schema = 1\npass = 3", "key 'pass' expects tables"),
        ("schema = 1\n[[pass]]\nto = 'x'", r"\[\[pass\]\] number 1 needs the key 'use'"),
        ("schema = 1\n[[pass]]\nuse = 'nonsense'", "unknown pass 'nonsense'"),
        ("schema = 1\n[[pass]]\nuse = 'label'\ntwo = 'x'", "pass 'label' has no option 'two'"),
        ("schema = 1\n[[pass]]\nuse = 'everything'\nlayers = '1,2'", "option 'layers' of 'everything' expects"),
        ("schema = 1\n[[pass]]\nuse = 'everything'\ncount = true", "option 'count' of 'everything' expects an integer"),
        ("schema = 1\nverify = ", "not TOML: Invalid value in line 2|not TOML: Invalid value \\(at end of document\\)"),
    ],
)
def test_toml_errors_name_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        toml.load(file, lookup)
    assert caught.value.file == file
    assert "pipeline.toml" in str(caught.value)


def test_toml_syntax_errors_point_at_the_place() -> None:
    with pytest.raises(SpecError, match="line 2") as caught:
        toml.loads("schema = 1\nverify = = 2\n", lookup)
    assert caught.value.caret() == "verify = = 2\n         ^"


def test_unreadable_toml(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read: No such file"):
        toml.load(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFileError, match="not UTF-8"):
        toml.load(tmp_path / "binary.toml")


def test_pipeline_reads_and_writes_all_forms(tmp_path: Path) -> None:
    text = "set-rt-info{key=a/b value=1},drop-dead-inputs{keep=beam_idx}"
    pipeline = Pipeline(text)
    file = tmp_path / "pipeline.toml"
    file.write_text(pipeline.to_toml())
    forms: list[Any] = [Pipeline(str(pipeline)), Pipeline.from_toml(file), Pipeline.from_toml(pipeline.to_toml())]
    assert [*forms, Pipeline(list(pipeline))] == [pipeline] * 4
    assert {hash(form) for form in forms} == {hash(pipeline)}
    assert str(pipeline) == text
    assert repr(pipeline) == f"Pipeline({text!r})"
    assert len(pipeline) == 2
