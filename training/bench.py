"""Check the fast recurrence on a GPU and time training steps: ``python -m training.bench [--profile]``.

Prints relative errors (values and gradients) of the chunked form against the naive one in fp64, then milliseconds and
tokens a second of whole training steps on random tokens.
"""

from __future__ import annotations

import argparse
import time

import torch

from training.forward import Batch, Forward
from training.model import build
from training.recurrence import Convolution, chunked_gated_delta_rule, naive_gated_delta_rule
from training.train import optimizer_for


def errors(dtype: torch.dtype, device: str) -> list[float]:
    """‖fast - naive‖ / ‖naive‖ of the output and of the gradients of q, k, v, g, beta; half of the keys repeat."""
    torch.manual_seed(0)
    shape = (2, 512)
    q, k = torch.randn(2, *shape, 4, 64, dtype=torch.float64)
    k[:, 100:300] = k[:, 100:101] + 0.05 * k[:, 100:300]
    v = torch.randn(*shape, 8, 64, dtype=torch.float64)
    g = -torch.rand(*shape, 8, dtype=torch.float64) * torch.logspace(-3, 0, 8, dtype=torch.float64)
    beta = torch.rand(*shape, 8, dtype=torch.float64)
    given = [x.to(dtype) for x in (q, k, v)] + [g.float(), beta.float()]
    weight = torch.randn(*shape, 8, 64, dtype=torch.float64)

    def run(rule, kind: torch.dtype | None, place: str) -> list[torch.Tensor]:
        inputs = [(x if kind is None else x.to(kind)).to(place).requires_grad_() for x in given]
        out = rule(*inputs)
        return [x.cpu().double() for x in (out, *torch.autograd.grad((out * weight.to(out)).sum(), inputs))]

    exact, fast = run(naive_gated_delta_rule, torch.float64, "cpu"), run(chunked_gated_delta_rule, None, device)
    return [((a - b).norm() / a.norm()).item() for a, b in zip(exact, fast, strict=True)]


def convolution_errors(device: str) -> list[float]:
    """As ``errors``, of the convolution's output and its gradients of input and weights, in bf16."""
    torch.manual_seed(1)
    x, w = torch.randn(512, 1024, dtype=torch.float64), torch.randn(1024, 4, dtype=torch.float64)
    change = torch.randn(512, 1024, dtype=torch.float64)
    results = []
    for kind, place in ((torch.float64, "cpu"), (torch.bfloat16, device)):
        inputs = [t.bfloat16().to(kind).to(place).requires_grad_() for t in (x, w)]
        out = Convolution.apply(*inputs, 256)
        results.append([t.cpu().double() for t in (out, *torch.autograd.grad((out * change.to(out)).sum(), inputs))])
    return [((a - b).norm() / a.norm()).item() for a, b in zip(*results, strict=True)]


def step_time(forward: Forward, tokens: int, length: int, repeats: int = 8) -> tuple[float, float]:
    """(first step's seconds, median later step's milliseconds) of forward, backward, clipping and update."""
    optimizer = optimizer_for(forward.model, 1e-4)
    times = []
    for _ in range(repeats + 1):
        ids = torch.randint(0, 4096, (tokens,), device="cuda")
        batch = Batch(ids, ids.roll(-1), torch.full((tokens,), 1 / tokens, device="cuda"), length)
        torch.cuda.synchronize()
        began = time.perf_counter()
        forward(batch)[0].backward()
        torch.nn.utils.clip_grad_norm_(forward.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times[0], 1e3 * sorted(times[1:])[repeats // 2]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--eager", action="store_true", help="time without torch.compile too")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    for dtype in (torch.float32, torch.bfloat16):
        print(dtype, "errors", [f"{e:.1e}" for e in errors(dtype, "cuda")], flush=True)
    print("convolution errors", [f"{e:.1e}" for e in convolution_errors("cuda")], flush=True)
    model = build("gdn").cuda()
    for compiled in (False, True) if options.eager else (True,):
        forward = Forward(model, torch.bfloat16, compiled)
        for tokens, length in ((131072, 512), (131072, 2048), (131072, 4096), (65536, 2048)):
            torch.cuda.reset_peak_memory_stats()
            first, later = step_time(forward, tokens, length)
            rate, memory = tokens / later / 1e3, torch.cuda.max_memory_allocated() / 2**30
            print(
                f"compiled={compiled} {tokens}x{length}: first {first:.1f} s, {later:.1f} ms, "
                f"{rate:.2f} M tok/s, {memory:.1f} GiB",
                flush=True,
            )
            if options.profile and compiled and length == 2048 and tokens == 131072:
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                    step_time(forward, tokens, length, 2)
                print(
                    profile.key_averages().table(sort_by="cuda_time_total", row_limit=22, max_name_column_width=70),
                    flush=True,
                )


if __name__ == "__main__":
    main()
