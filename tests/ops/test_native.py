import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from holdover.ops import forms
from holdover.ops.native import build, elementwise, library
from holdover.ops.native import convolution as native_conv
from holdover.ops.native.elementwise import Activation
from holdover.ops.native.recurrence import FORMS
from holdover.ops.norm import gated_rms_norm, rms_norm
from holdover.ops.recurrence.gdn import torch as gdn
from holdover.ops.recurrence.rwkv6 import torch as rwkv6
from tests.helpers import assert_close

# rests of every length, and more than four of the widest vectors
WIDTHS = [1, 3, 8, 15, 16, 17, 64, 67]
SPECIAL = torch.tensor([-1e38, -200.0, -88.0, -1e-3, 0.0, 1e-30, 1e-3, 20.0, 87.0, 200.0, 1e38])


def test_it_is_what_the_engine_runs_here() -> None:
    """Without a compiler every test of this suite would test torch's forms twice."""
    assert library.available()
    pool = torch.zeros(2, 1, 4, 4)
    assert forms.step_form(gdn, pool) is FORMS["gdn"].step
    assert forms.sequence_form(gdn, pool) is FORMS["gdn"].sequence
    assert forms.sequence_form(rwkv6, pool) is rwkv6.sequence
    assert forms.sequence_form(gdn, pool.bfloat16()) is gdn.sequence


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("activation", "function"),
    [(Activation.NONE, torch.ones_like), (Activation.SILU, F.silu), (Activation.SIGMOID, torch.sigmoid)],
)
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 4), (2, 3, 5)])
def test_norm_is_its_definition(width: int, activation: Activation, function, shape: tuple[int, ...]) -> None:
    joined = torch.randn(*shape, 2 * width + 1)
    x, gate = joined[..., 1 : width + 1], joined[..., width + 1 :]
    weight = torch.randn(width)
    wide = x.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = elementwise.norm(x, weight, 1e-5, gate, activation)
    assert_close("norm", out, normed * function(gate.double()), 1e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_product_is_its_definition(width: int) -> None:
    gate, x = torch.randn(3, 5, 2 * width).split(width, dim=-1)
    out = elementwise.silu_product(gate, x)
    assert_close("product", out, F.silu(gate.double()) * x.double(), 1e-6)


@pytest.mark.parametrize(("activation", "function"), [(Activation.SILU, F.silu), (Activation.SIGMOID, torch.sigmoid)])
def test_activations_of_extreme_numbers(activation: Activation, function) -> None:
    def activated(gate: torch.Tensor) -> torch.Tensor:
        gate = gate.unsqueeze(-1)
        return elementwise.norm(torch.ones_like(gate), torch.ones(1), 0.0, gate, activation).squeeze(-1)

    torch.testing.assert_close(activated(SPECIAL), function(SPECIAL.double()).float(), rtol=1e-6, atol=1e-37)
    not_numbers = torch.tensor([float("nan"), float("inf"), 1.0])
    assert activated(not_numbers).isnan().tolist() == [True, False, False]


def recurrence(name: str, slots: torch.Tensor, **changed: torch.Tensor) -> torch.Tensor:
    """One call on a pool of 4 slots, of 3 sequences, 2 tokens, 6 heads over 2 key heads."""
    timed = {"gdn": {"q": (2, 5), "k": (2, 5), "v": (6, 7), "log_decay": (6,), "beta": (6,)}}
    timed["kda"] = timed["gdn"] | {"q": (6, 5), "k": (6, 5), "log_decay": (6, 5)}
    timed["mamba2"] = {"x": (6, 7), "dt": (6,), "b": (2, 5), "c": (2, 5)}
    fixed = {"a": torch.zeros(6), "d": torch.zeros(6)} if name == "mamba2" else {}
    inputs = {key: torch.zeros(3, 2, *shape) for key, shape in timed[name].items()}
    pool = changed.pop("pool", torch.zeros(4, 6, 5, 7))
    return FORMS[name].sequence(pool, slots, **{**inputs, **fixed, **changed})


def convolution(slots: torch.Tensor, **changed: torch.Tensor) -> torch.Tensor:
    """One call on a pool of 4 slots, of 3 sequences, 2 tokens, 8 channels."""
    inputs = {"pool": torch.zeros(4, 3, 8), "x": torch.zeros(3, 2, 8), "weight": torch.zeros(8, 4)}
    return native_conv.sequence(slots=slots, **{**inputs, **changed})


@pytest.mark.parametrize("call", [*(partial(recurrence, name) for name in FORMS), convolution])
def test_slots_that_are_not_in_the_pool_are_refused(call) -> None:
    assert not call(torch.tensor([3, 0, 2])).any()
    for wrong in ([3, 0, 4], [-1, 0, 2]):
        with pytest.raises(IndexError, match="not all among the 4 of the pool"):
            call(torch.tensor(wrong))
    for other in (torch.tensor([0, 1]), torch.tensor([0, 1, 2], dtype=torch.int32), torch.arange(6)[::2]):
        with pytest.raises(ValueError, match="want int64"):
            call(other)
    wide = torch.zeros(4, 9, 9, 9)
    with pytest.raises(ValueError, match="in one piece"):
        call(torch.tensor([3, 0, 2]), pool=wide[:, :6, :5, :7] if call is not convolution else wide[:, :3, :8, 0])


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("gdn", {"k": (3, 2, 1, 5)}),
        ("gdn", {"q": (3, 2, 4, 5), "k": (3, 2, 4, 5)}),
        ("gdn", {"log_decay": (3, 2, 1)}),
        ("gdn", {"beta": (3, 1, 6)}),
        ("kda", {"log_decay": (3, 2, 6)}),
        ("kda", {"v": (3, 2, 6, 8)}),
        ("mamba2", {"a": (1,)}),
        ("mamba2", {"c": (3, 2, 2, 6)}),
        ("conv", {"weight": (8, 3)}),
        ("conv", {"weight": (8, 17)}),
        ("conv", {"bias": (1,)}),
        ("conv", {"x": (3, 2, 9)}),
    ],
)
def test_what_torch_would_broadcast_or_refuse_is_refused(name: str, changed: dict[str, tuple[int, ...]]) -> None:
    call = convolution if name == "conv" else partial(recurrence, name)
    with pytest.raises(ValueError, match="want"):
        call(torch.tensor([3, 0, 2]), **{key: torch.zeros(shape) for key, shape in changed.items()})


def test_gates_and_weights_are_not_broadcast() -> None:
    x = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match="want"):
        elementwise.norm(x, torch.ones(3), 1e-6)
    with pytest.raises(ValueError, match="want"):
        elementwise.norm(x, torch.ones(4), 1e-6, torch.zeros(2, 1, 4), Activation.SILU)
    with pytest.raises(ValueError, match="want"):
        elementwise.silu_product(torch.zeros(2, 1, 4), x)


def test_threads_change_no_bit() -> None:
    torch.manual_seed(0)
    pool = torch.randn(4, 8, 32, 40)
    pools = [pool, pool.clone()]
    q, k, v = torch.randn(3, 70, 8, 32), torch.randn(3, 70, 8, 32), torch.randn(3, 70, 8, 40)
    log_decay, beta = -torch.rand(3, 70, 8), torch.rand(3, 70, 8)
    before = torch.get_num_threads()
    results = []
    try:
        for count, pool in zip((1, 3), pools, strict=True):
            torch.set_num_threads(count)
            results.append(FORMS["gdn"].sequence(pool, torch.tensor([3, 0, 1]), q, k, v, log_decay, beta))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)
    assert torch.equal(*pools)


def test_a_vanishing_decay_loses_the_state_and_nothing_else() -> None:
    pool, beta = torch.full((1, 1, 8, 8), 3e38), torch.zeros(1, 2, 1)
    x = torch.ones(1, 2, 1, 8)
    out = FORMS["gdn"].sequence(pool, torch.tensor([0]), x, x, x, torch.full((1, 2, 1), float("-inf")), beta)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(pool, torch.zeros_like(pool))


def test_without_it_torch_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, gate, weight = torch.randn(2, 5, 3, 16), torch.randn(2, 5, 3, 16), torch.rand(16)
    native = [rms_norm(x, weight, 1e-6), gated_rms_norm(x, gate, weight, 1e-6)]
    monkeypatch.setattr(library, "available", lambda: False)
    own = [rms_norm(x, weight, 1e-6), gated_rms_norm(x, gate, weight, 1e-6)]
    for name, a, b in zip(("norm", "gated"), native, own, strict=True):
        assert_close(name, a, b, 1e-6)


def _available(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program = "from holdover.ops.native.library import available; print(available())"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)


@pytest.mark.parametrize(
    ("variables", "answer", "said"),
    [
        ({}, "True", ""),
        ({"HOLDOVER_NATIVE": "0"}, "False", ""),
        ({"CC": "no-such-compiler"}, "False", "no-such-compiler: no such program"),
        ({"CC": "false"}, "False", "false"),
        ({"CC": "cc '"}, "False", "CC is"),
    ],
)
def test_what_a_process_finds(tmp_path: Path, variables: dict[str, str], answer: str, said: str) -> None:
    done = _available({"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), **variables})
    assert done.stdout.strip() == answer
    assert said in done.stderr
    if said:
        assert "without compiled kernels" in done.stderr


def test_it_is_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build.library()
    made = first.stat().st_mtime_ns
    assert build.library() == first
    assert first.stat().st_mtime_ns == made
    assert first.parent == tmp_path / "holdover" / "native"
    assert [x.name for x in first.parent.iterdir()] == [first.name]
    # what an image was built with is used where nothing can be written
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert build.library() == first


@pytest.mark.parametrize("home", ["cannot be written", "there is none"])
def test_without_a_home_it_is_compiled_for_one_process(tmp_path: Path, home: str) -> None:
    (tmp_path / "file").touch()
    lines = ["from pathlib import Path", "from holdover.ops.native import build"]
    if home == "there is none":
        # as for a user that only a container knows
        lines += ["def fail(): raise RuntimeError('no home')", "Path.home = fail"]
    program = "\n".join([*lines, "made = build.library()", "print(made, made.exists())"])
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    made, existed = done.stdout.split()
    assert existed == "True"
    assert Path(made).is_relative_to(tmp_path)
    assert not Path(made).parent.exists()
