"""A miniature engine that resumes a toy recurrent model from checkpoints in its own pages.

The model folds every token into a state of 8 numbers: the state is all that a resumed request needs,
and it is what a prefix cache of KV blocks cannot give. The engine admits, cuts prefill chunks, builds
batches, files boundaries, settles receipts and aborts, as docs/embedding.md explains.

    python examples/miniature_engine.py
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import statepages as sp

BLOCK, PAGES, SLOTS, BUDGET = 16, 160, 4, 40
STATE = 8  # float64 numbers of a request's state
LAYOUT = sp.StateLayout(
    "miniature-1",
    regions=[("tokens", BLOCK * 4), ("sums", 16)],
    planes=[("state", STATE * 8)],
)
DOMAIN = sp.Domain("miniature weights 1", layout_id=LAYOUT.id)


@dataclass
class Request:
    """One request: its prompt, and where it is."""

    id: int
    tokens: list[int]
    new_tokens: int
    keys: sp.PromptKeys = field(init=False)
    residency: sp.Residency | None = None
    computed: int = 0
    resumed: int = 0
    last_kept: int = 0
    place: dict[str, Any] = field(default_factory=dict)
    prompt: int = 0
    output: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)
        self.keys = sp.PromptKeys(DOMAIN, BLOCK, np.array(self.tokens))


class Engine:
    """Owns tensors and schedule; statepages owns who holds which page, slot and checkpoint."""

    def __init__(self) -> None:
        self.tokens = np.zeros((PAGES, BLOCK), np.uint32)
        self.sums = np.zeros((PAGES, 2), np.float64)
        self.state = np.zeros((SLOTS, STATE), np.float64)
        runtime = sp.StateRuntime(sp.StateTransfer.copy(LAYOUT.id), LAYOUT.spec())
        self.plane = sp.ControlPlane(
            pages=PAGES, slots=SLOTS, runtime=runtime, block_size=BLOCK, interval=4 * BLOCK
        )
        self.copies = sp.HostBackend(LAYOUT, regions=[self.tokens, self.sums], planes=[self.state])
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.forwards = 0

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """The one door out, wherever the request is: pending state and queued restores go with it."""
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self.plane.release(request.residency)

    def step(self) -> None:
        """Admit, cut, build, copy, forward, settle, publish, file."""
        self.admit()
        members = [(request, self.cut(request)) for request in self.running]
        if not members:
            return  # An empty batch drains nothing and settles nothing.
        batch = self.plane.begin_batch()
        for request, end in members:
            self.plane.join(batch, request.residency, end)
        try:
            self.copies.submit(batch.ops)  # Ordered: the forward that follows sees its bytes.
            for request, end in members:
                self.forward(request, end)
        except BaseException:
            self.plane.settle(batch, done=False)
            raise
        self.plane.settle(batch)
        for request, end in members:
            self.report(request, end)

    def admit(self) -> None:
        while self.waiting:
            request = self.waiting[0]
            admitted = self.plane.try_admit(request.id, request.keys)
            if not admitted:
                return  # `Refused`: nothing was taken; try again after somebody has left.
            self.waiting.pop(0)
            request.residency = admitted.residency
            request.place = {"demand": admitted.demand, "scope": admitted.scope}
            request.computed = request.resumed = request.last_kept = admitted.resumed
            self.running.append(request)

    def cut(self, request: Request) -> int:
        """The end of the next chunk: on a boundary to be kept, within the budget."""
        start, total = request.computed, len(request.tokens)
        if start >= request.prompt:
            return total  # Decode: one token.
        end = min(start + BUDGET, request.prompt)
        return self.plane.chunk_end(start, end, request.prompt, **request.place)

    def forward(self, request: Request, end: int) -> None:
        state, pages = self.state[request.residency.slot], request.residency.pages
        if request.computed == 0:
            state[:] = 1.0  # A slot holds what its last tenant left.
        for position in range(request.computed, end):
            token = request.tokens[position]
            state[:] = np.sin(state * 1.7 + token * np.arange(1, STATE + 1))
            page = pages[position // BLOCK]
            self.tokens[page, position % BLOCK] = token
            self.sums[page, 0] = state.sum()
        self.forwards += end - request.computed
        if end == len(request.tokens):
            request.output.append(int(abs(state.sum()) * 1e6) % 50_000)

    def report(self, request: Request, end: int) -> None:
        plane, residency = self.plane, request.residency
        request.computed = end
        plane.advance(residency, request.keys, end)
        finished = len(request.output) >= request.new_tokens
        reason = plane.keep(
            end, request.prompt, last_kept=request.last_kept, more=not finished, **request.place
        )
        if reason is not None:
            plane.file(residency, request.keys, end, reason)
            request.last_kept = end
        if finished:
            self.running.remove(request)
            plane.release(residency)
        elif end == len(request.tokens):
            request.tokens.append(request.output[-1])
            request.keys.extend(request.tokens[-1:])
            if len(request.tokens) > len(residency.pages) * BLOCK:
                if plane.append_block(residency) is None:
                    self.abort(request)  # A larger engine would preempt and retry.

    def run(self) -> None:
        while self.waiting or self.running:
            self.step()


def main() -> None:
    draw = np.random.default_rng(1)
    prompts = [draw.integers(0, 1000, 150 + 17 * n).tolist() for n in range(6)]
    shared = prompts[0][:112] + draw.integers(0, 1000, 40).tolist()
    cold = [Engine() for _ in (*prompts, shared)]
    wanted = []
    for engine, prompt in zip(cold, (*prompts, shared), strict=True):
        engine.submit(request := Request(1, list(prompt), 6))
        engine.run()
        wanted.append(request.output)

    engine = Engine()
    rounds = []
    for first in (0, 100):
        before = engine.forwards
        requests = [Request(first + n, list(p), 6) for n, p in enumerate(prompts)]
        if first:
            requests.append(Request(first + 50, list(shared), 6))
        victim = Request(first + 99, list(prompts[2]), 6)
        for request in (victim, *requests):
            engine.submit(request)
        engine.step()
        engine.abort(victim)
        engine.run()
        rounds.append((requests, engine.forwards - before))
    for requests, _ in rounds:
        assert [r.output for r in requests] == wanted[: len(requests)], "resumed equals cold"
    (cold_requests, cold_tokens), (requests, resumed_tokens) = rounds
    assert all(r.resumed == 0 for r in cold_requests)
    assert all(r.resumed == (r.prompt - 1) // BLOCK * BLOCK for r in requests[:6])
    assert requests[6].resumed == 64, "the last kept boundary that both prompts share"
    engine.plane.check()
    gauges = engine.plane.gauges()
    assert gauges["slots_free"] == SLOTS and gauges["pages_live"] == 0
    print(f"computed {cold_tokens} tokens cold, {resumed_tokens} resumed; all outputs equal")


if __name__ == "__main__":
    main()
