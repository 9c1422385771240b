from pathlib import Path
from typing import Any

import pytest

from holdover.retention import RetentionPlan
from holdover.retention.decay import read_decay
from holdover.retention.plan_file import find_plans, read_plan
from holdover.weights.source import open_files
from tests.cli.run import error_line, invoke
from tests.retention.checkpoint import write_checkpoint


def run(*arguments: str, **environment: str) -> Any:
    return invoke("plan", *arguments, **environment)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "p.safetensors"


def test_the_plan_of_a_bundled_model(file: Path) -> None:
    result = run("tiny-gdn", "--wmax", "64", "-o", str(file))
    assert result.exit_code == 0
    decay = read_decay(open_files("tiny-gdn"))
    made = read_plan(file)
    assert made.digest == RetentionPlan.of(decay, 64).digest
    made.check_fits(decay.fingerprint, decay.layout.state)
    assert result.stdout.splitlines()[0] == f"wrote {file}"
    assert f"{sum(made.counts)} of 48 units" in result.stdout
    assert "no quality gate recorded: run holdover calibrate" in result.stdout


def test_options_are_recorded(file: Path) -> None:
    run("tiny-gdn", "--wmax", "64", "-o", str(file), "--a-s", "0.5", "--epsilon", "0.01")
    made = read_plan(file)
    assert (made.w_max, made.gate_input, made.epsilon) == (64, 0.5, 0.01)


def test_a_plan_of_channels(file: Path, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "kimi-k3", "kimi-k3")
    result = run(str(model), "--wmax", "64", "-o", str(file))
    assert "bounded gate, a_s 0.8" in result.stdout
    made = read_plan(file)
    assert (made.gate, made.gate_input) == ("bounded", 0.8)
    assert [len(mask) for mask in made.retained] == [12_288] * 69


def test_a_random_control(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "control.safetensors"
    run("tiny-gdn", "--wmax", "64", "-o", str(file))
    result = run("tiny-gdn", "--wmax", "64", "-o", str(other), "--random", "7")
    assert "selected by random(7)" in result.stdout
    assert read_plan(other).digest == read_plan(file).random_like(7).digest


def test_a_control_is_not_left_where_servers_look(tmp_path: Path) -> None:
    result = run("tiny-gdn", "--wmax", "64", "--random", "7", HOLDOVER_PLANS=str(tmp_path))
    assert result.exit_code == 2
    assert "-o" in error_line(result.stderr)
    assert not list(tmp_path.iterdir())


def test_without_a_file_it_goes_where_it_is_found(tmp_path: Path) -> None:
    plans = tmp_path / "plans"
    for options, code in (((), 0), ((), 2), (("--force",), 0)):
        result = run("tiny-gdn", "--wmax", "64", *options, HOLDOVER_PLANS=str(plans))
        assert result.exit_code == code
    (found,) = find_plans(tmp_path, read_decay(open_files("tiny-gdn")).fingerprint, plans)
    assert f"wrote {found}" in result.stdout


def test_an_existing_file_is_kept_unless_forced(file: Path) -> None:
    file.write_text("precious")
    result = run("tiny-gdn", "--wmax", "64", "-o", str(file))
    assert result.exit_code == 2
    assert "--force" in error_line(result.stderr)
    assert file.read_text() == "precious"
    assert run("tiny-gdn", "--wmax", "64", "-o", str(file), "--force").exit_code == 0
    assert read_plan(file).w_max == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny-gdn", "--wmax", "3"), "w_max is 3"),
        (("tiny-gdn", "--wmax", "64", "--epsilon", "0"), "epsilon is 0.0"),
        (("no-such-model", "--wmax", "64"), "no-such-model"),
    ],
)
def test_what_cannot_be_planned(arguments: tuple[str, ...], message: str, file: Path) -> None:
    result = run(*arguments, "-o", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in error_line(result.stderr)
    assert not file.exists()


def test_no_place_to_write(file: Path) -> None:
    file.write_text("a file, not a folder")
    result = run("tiny-gdn", "--wmax", "64", "-o", str(file / "below"))
    assert result.exit_code == 2
    assert "cannot be written" in error_line(result.stderr)
