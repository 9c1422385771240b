"""Check a fast recurrence on a GPU and time training steps: ``python -m training.bench --architecture kda``.

Prints relative errors (values and gradients) of the chunked form against the naive one in fp64, then milliseconds and
tokens a second of whole training steps on random tokens, with ``--profile`` also the kernels that take longest.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

from training.forwards import FORWARDS, RULES, Batch, Forward
from training.model import build
from training.recurrence import Convolution
from training.train import optimizer_for

SHAPE = (2, 512)  # sequences and tokens of the errors' inputs


def rule_inputs(architecture: str) -> list[Tensor]:
    """Random inputs of an architecture's rule in fp64, at the model's head sizes; half of the keys repeat."""
    generator = torch.Generator().manual_seed(0)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*SHAPE, *sizes, dtype=torch.float64, generator=generator)

    if architecture == "mamba2":
        rate = -torch.logspace(-3, 0, 8, dtype=torch.float64)
        return [draw(8, 32), draw(1, 128), draw(1, 128), draw(8).abs(), rate]
    channels = architecture == "kda"
    q, k, v = draw(4, 64), draw(4, 64), draw(4 if channels else 8, 64)
    k[:, 100:300] = k[:, 100:101] + 0.05 * k[:, 100:300]
    sizes = (4, 64) if channels else (8,)
    g = -draw(*sizes).abs() * torch.logspace(-3, 0, sizes[-1], dtype=torch.float64)
    return [q, k, v, g, draw(v.shape[2]).sigmoid()]


def relative(exact: list[Tensor], fast: list[Tensor]) -> str:
    """‖fast - exact‖ / ‖exact‖ of each pair."""
    return " ".join(f"{((a - b).norm() / a.norm()).item():.1e}" for a, b in zip(exact, fast, strict=True))


def errors(architecture: str, dtype: torch.dtype, device: str) -> str:
    """Relative errors of the output and of the gradients of the rule's inputs; the first three are in ``dtype``."""
    given = [x.to(dtype if at < 3 else torch.float32) for at, x in enumerate(rule_inputs(architecture))]
    naive, chunked = RULES[architecture]
    results = []
    for rule, kind, place in ((naive, torch.float64, "cpu"), (chunked, None, device)):
        inputs = [x.to(place, kind).requires_grad_() for x in given]
        out = rule(*inputs)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
        results.append([x.cpu().double() for x in (out, *torch.autograd.grad((out * weight).sum(), inputs))])
    return relative(*results)


def convolution_errors(device: str) -> str:
    """As ``errors``, of the convolution's output and its gradients of input, weights and bias, in bf16."""
    torch.manual_seed(1)
    given = [torch.randn(*sizes, dtype=torch.float64).bfloat16() for sizes in ((512, 1024), (1024, 4), (1024,))]
    change = torch.randn(512, 1024, dtype=torch.float64)
    results = []
    for kind, place in ((torch.float64, "cpu"), (torch.bfloat16, device)):
        inputs = [x.to(place, kind).requires_grad_() for x in given]
        out = Convolution.apply(*inputs, 256)
        results.append([t.cpu().double() for t in (out, *torch.autograd.grad((out * change.to(out)).sum(), inputs))])
    return relative(*results)


def step_time(forward: Forward, tokens: int, length: int, window: int, repeats: int = 8) -> tuple[float, float]:
    """(first step's seconds, median later step's milliseconds) of forward, backward, clipping and update."""
    optimizer = optimizer_for(forward.model, 1e-4)
    times = []
    for _ in range(repeats + 1):
        ids = torch.randint(0, 4096, (tokens,), device="cuda")
        batch = Batch(ids, ids.roll(-1), torch.full((tokens,), 1 / tokens, device="cuda"), length, window)
        torch.cuda.synchronize()
        began = time.perf_counter()
        forward(batch)[0].backward()
        torch.nn.utils.clip_grad_norm_(forward.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times[0], 1e3 * sorted(times[1:])[repeats // 2]


def profile(forward: Forward, tokens: int, length: int) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        step_time(forward, tokens, length, length, 2)
    print(found.key_averages().table(sort_by="cuda_time_total", row_limit=22, max_name_column_width=70), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Errors of a fast recurrence, and time of training steps.")
    parser.add_argument("--architecture", choices=list(FORWARDS), default="gdn")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    for dtype in (torch.float32, torch.bfloat16):
        print(options.architecture, dtype, "errors", errors(options.architecture, dtype, "cuda"), flush=True)
    print("convolution errors", convolution_errors("cuda"), flush=True)
    forward = FORWARDS[options.architecture](build(options.architecture).cuda(), torch.bfloat16, True)
    tokens = 131072
    for length, window in ((512, 512), (2048, 2048), (2048, 64), (4096, 4096)):
        torch.cuda.reset_peak_memory_stats()
        first, later = step_time(forward, tokens, length, window)
        rate, memory = tokens / later / 1e3, torch.cuda.max_memory_allocated() / 2**30
        print(
            f"{tokens} tokens, rows of {length}, window {window}: first {first:.1f} s, {later:.1f} ms, "
            f"{rate:.2f} M tokens/s, {memory:.1f} GiB",
            flush=True,
        )
    if options.profile:
        profile(forward, tokens, 2048)


if __name__ == "__main__":
    main()
