from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import safe_open, save_file

from holdover.errors import PlanError
from holdover.retention import RetentionPlan
from holdover.retention.plan_file import BESIDE, PLAN_NAME, _checksum, find_plans, read_plan, user_plan, write_plan
from tests.project.paths import MODELS
from tests.retention.test_plan import GATE, plan


def contents(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Metadata and tensors of the file."""
    with safe_open(path, framework="pt") as file:
        return file.metadata(), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


@pytest.fixture
def path(tmp_path: Path) -> Path:
    where = tmp_path / "plan.safetensors"
    write_plan(replace(plan(), quality=GATE), where)
    return where


@pytest.mark.parametrize("made", [plan(), replace(plan(), quality=GATE), plan(64).random_like(7), plan(1000)])
def test_what_is_written_is_read(made: RetentionPlan, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "p.safetensors"
    write_plan(made, path)
    got = read_plan(path)
    assert got.digest == made.digest
    assert got.quality == made.quality
    for name in ("horizons", "retained"):
        assert all(map(torch.equal, getattr(got, name), getattr(made, name)))
    fields = [name for name in RetentionPlan.__dataclass_fields__ if name not in ("horizons", "retained")]
    assert [getattr(got, name) for name in fields] == [getattr(made, name) for name in fields]


def test_a_plan_outlives_its_file(path: Path) -> None:
    made = read_plan(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert made.digest == plan().digest


def test_any_changed_byte_is_noticed(path: Path) -> None:
    data = path.read_bytes()
    for position in (*range(0, len(data), 3), *range(len(data) - 8, len(data))):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        with pytest.raises(PlanError, match=r"plan\.safetensors"):
            read_plan(path)


def test_a_truncated_file_is_noticed(path: Path) -> None:
    data = path.read_bytes()
    for length in range(0, len(data), 13):
        path.write_bytes(data[:length])
        with pytest.raises(PlanError, match="truncated or damaged"):
            read_plan(path)


def test_an_edited_gate_is_noticed(path: Path) -> None:
    metadata, tensors = contents(path)
    edited = metadata["plan"].replace('"p95_kl": 0.05', '"p95_kl": 0.01')
    assert edited != metadata["plan"]
    save_file(tensors, path, metadata | {"plan": edited})
    with pytest.raises(PlanError, match="was edited"):
        read_plan(path)


def test_a_checksum_made_anew_is_noticed_by_the_digest(path: Path) -> None:
    metadata, tensors = contents(path)
    tensors["retained.0"].zero_()
    save_file(tensors, path, metadata | {"checksum": _checksum(metadata["plan"], tensors)})
    with pytest.raises(PlanError, match="was edited"):
        read_plan(path)


def test_swapped_masks_are_noticed(path: Path) -> None:
    metadata, tensors = contents(path)
    tensors["retained.0"], tensors["retained.1"] = tensors["retained.1"], tensors["retained.0"]
    save_file(tensors, path, metadata)
    with pytest.raises(PlanError, match="was edited"):
        read_plan(path)


@pytest.mark.parametrize("extra", [True, False])
def test_tensors_too_many_or_too_few_are_noticed(path: Path, extra: bool) -> None:
    metadata, tensors = contents(path)
    if extra:
        tensors["retained.9"] = torch.ones(1)
    else:
        del tensors["horizons.1"]
    save_file(tensors, path, metadata)
    with pytest.raises(PlanError, match="was edited"):
        read_plan(path)


def test_a_newer_version_is_refused(path: Path) -> None:
    metadata, tensors = contents(path)
    save_file(tensors, path, metadata | {"version": "2"})
    with pytest.raises(PlanError, match=r"version '2'.*upgrade"):
        read_plan(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no retention plan"):
        read_plan(MODELS / "tiny-gdn" / "model.safetensors")
    with pytest.raises(PlanError, match="no plan, or truncated"):
        read_plan(MODELS / "tiny-gdn" / "config.json")
    for absent in (tmp_path, tmp_path / "absent"):
        with pytest.raises(PlanError, match="does not exist"):
            read_plan(absent)


def test_a_failed_write_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PlanError, match="cannot be written: No space left"):
        write_plan(plan(64), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_no_folder_to_write_to(path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be written"):
        write_plan(plan(), path / "below.safetensors")


def test_the_plan_beside_the_model_comes_first(tmp_path: Path) -> None:
    model, user, fingerprint = tmp_path / "model", tmp_path / "user", "f" * 64
    assert find_plans(model, fingerprint, user) == []
    write_plan(plan(), user_plan(fingerprint, user))
    assert find_plans(model, fingerprint, user) == [user_plan(fingerprint, user)]
    assert find_plans(model, "e" * 64, user) == []
    write_plan(plan(), model / BESIDE / PLAN_NAME)
    assert find_plans(model, fingerprint, user) == [model / BESIDE / PLAN_NAME, user_plan(fingerprint, user)]


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HOLDOVER_PLANS": "{}/mine", "XDG_CONFIG_HOME": "{}/xdg"}, "mine"),
        ({"XDG_CONFIG_HOME": "{}/xdg"}, "xdg/holdover/plans"),
        ({}, ".config/holdover/plans"),
    ],
)
def test_the_users_directory(
    variables: dict[str, str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HOLDOVER_PLANS", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    write_plan(plan(), user_plan("a" * 64))
    assert find_plans(tmp_path / "remote", "a" * 64) == [tmp_path / folder / f"{'a' * 32}.safetensors"]
