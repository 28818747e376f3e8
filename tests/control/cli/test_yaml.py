"""Jobs in YAML: aliases cannot make one too long, and a job that is printed is read back as it was."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tidewheel.control.cli import job_files
from tidewheel.control.cli.job_files import read_job, read_jobs
from tidewheel.control.reads import yaml_form
from tidewheel.control.reads.yaml_form import JobLoader, as_yaml
from tidewheel.errors import FieldError, InvalidInput

LAUGHS = "\n".join(
    ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
)
ENDLESS = "key: k\npayload: &p [*p]"


@pytest.mark.parametrize("form", ["{}", "- {}", "---\nkey: first\n---\n{}"])
@pytest.mark.parametrize(("bomb", "problem"), [(LAUGHS, "its aliases expand to more"), (ENDLESS, "contains itself")])
def test_alias_bomb_is_refused(tmp_path: Path, form: str, bomb: str, problem: str) -> None:
    file = tmp_path / "jobs.yaml"
    indented = bomb.replace("\n", "\n  ") if form.startswith("- ") else bomb
    file.write_text(form.format(indented))
    *_, last = read_jobs(str(file))
    assert isinstance(last.content, FieldError)
    assert problem in last.content.problem


@pytest.mark.parametrize("bomb", [LAUGHS, ENDLESS, "a: " + "[" * 5000 + "]" * 5000])
def test_alias_bomb_and_deep_nesting_are_refused_as_one_job(tmp_path: Path, bomb: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(bomb)
    with pytest.raises(InvalidInput) as raised:
        read_job(str(file))
    assert raised.value.errors[0].path == "--file"


@pytest.mark.landing
def test_deep_nesting_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("a: " + "[" * 5000 + "]" * 5000)
    [found] = read_jobs(str(file))
    assert isinstance(found.content, FieldError)
    assert found.content.problem == "is nested too deeply"


def test_jobs_may_share_a_part(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("- {key: a, target: &t {type: http, url: 'https://x'}}\n- {key: b, target: *t}\n")
    first, second = (found.content for found in read_jobs(str(file)))
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["target"] == second["target"] == {"type": "http", "url": "https://x"}


@given(st.lists(st.lists(st.integers(0, 20), max_size=3), min_size=1, max_size=6))
def test_length_of_a_job_is_that_of_its_aliases_written_out(shape: list[list[int]]) -> None:
    """Each list holds the ones before it that its numbers name."""
    lines = [f"a{n}: &a{n} [x{''.join(f', *a{of % n}' for of in parts if n)}]" for n, parts in enumerate(shape)]
    text = "\n".join(lines)
    value = yaml.load(text, JobLoader)  # noqa: S506 - it is a safe loader
    nodes = json.dumps(value).count("[") + json.dumps(value).count('"x"') * 2 + 1
    nodes += sum(1 + len(name) for name in value)
    [node] = yaml.compose_all(text, JobLoader)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job_files, "MAX_DOCUMENT_BYTES", nodes)
        job_files.ensure_bounded(node)
        patched.setattr(job_files, "MAX_DOCUMENT_BYTES", nodes - 1)
        with pytest.raises(yaml.YAMLError, match="its aliases expand to more"):
            job_files.ensure_bounded(node)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=20) | st.from_regex(r"-?[0-9.]{1,4}([eE][-+]?[0-9]{1,2})?", fullmatch=True)
        | st.sampled_from(["no", "1e3", "1.5E3", "08", "0x1F", "1_000", "12:30:00", "2026-03-01", "~", "=", "<<"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
)  # fmt: skip
@example(["\x85", "a\u2028b"])
@example({"text": "a: b\n# c\u202e \x07\x85", "labels": {"team": "1e3", "on": "no"}})
def test_job_printed_as_yaml_is_read_back_as_it_was(value: object) -> None:
    assert yaml.load(as_yaml(value), JobLoader) == value  # noqa: S506 - it is a safe loader


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    return str(path)


def test_job_before_an_unreadable_one_is_read(tmp_path: Path) -> None:
    first, second = read_jobs(written(tmp_path, "- key: a\n- key: [b\n"))
    assert first.content == {"key": "a"}
    assert isinstance(second.content, FieldError)
    assert "not valid YAML" in second.content.problem


@pytest.mark.slow
def test_memory_of_yaml_is_that_of_one_job(tmp_path: Path) -> None:
    """Nodes take a hundred times their text: a list of 64 MiB took 6 GiB."""
    text = "- {key: k, payload: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]}\n" * 1000
    source = written(tmp_path, text)
    tracemalloc.start()
    try:
        jobs = read_jobs(source)
        next(jobs)
        tracemalloc.reset_peak()  # reading reserves the longest file's length
        assert sum(1 for _ in jobs) == 999
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(text)


def test_job_of_too_many_values_is_refused_by_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_form, "MAX_VALUES", 100)
    jobs = list(read_jobs(written(tmp_path, f"- key: a\n- key: b\n  payload: {list(range(200))}\n")))
    assert jobs[0].content == {"key": "a"}
    assert isinstance(jobs[1].content, FieldError)
    assert "one job has more than 100 values" in jobs[1].content.problem


def test_file_of_one_job_is_not_read_beyond_the_longest_request(tmp_path: Path) -> None:
    long = Path(written(tmp_path, ""))
    os.truncate(long, 64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=r"has more than 1048576 bytes.*tidewheel apply"):
            read_job(str(long))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
