"""Writes the C++ of a traced loop.

Values of a step fall into levels: a gradient and a norm need a whole vector, so they begin a new
level. All other vectors of a level are made in one pass over the coordinates, in which those that
only this pass needs are never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

from undrift.gradients.loops.trace import Structure
from undrift.gradients.loops.traced import Node

WHOLE = "gradient", "norm"  # operations that need all coordinates of a vector at once
GIVEN = "carry", "tensor"  # values that are in memory before the step

EXPRESSIONS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "add_scaled": "fused({2}, {1}, {0})",
    "sub_scaled": "fused(-{2}, {1}, {0})",
    "neg": "-{0}",
    "reciprocal": "1.0f / {0}",
    "sqrt": "std::sqrt({0})",
    "abs": "std::fabs({0})",
    "pow": "std::pow({0}, {1})",
    "lerp": "lerp({0}, {1}, {2})",
    "where": "{0} ? {1} : {2}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "zero": "0.0f",
    "one": "1.0f",
}

_LOOP = """
namespace {{
constexpr long BUFFERS = {buffers};

int run(const Call& call, long i, float* room) {{
  const long size = call.size, padded = (size + 15) / 16 * 16;
  (void)room;
  (void)padded;
  {names}
  for (long k = 0; k < call.lengths[i]; ++k) {{
    call.fetch(i, k + 1);
    {steps}
  }}
  return 0;
}}
}}  // namespace

// Runs the steps of all clients; a client whose gradient is not 0 ends with it in its status.
extern "C" void undrift_loop(const Call* call) {{
  Workers::share(call->clients, (int)call->threads, [&](long i) {{
    thread_local Room room;
    const long padded = (call->size + 15) / 16 * 16;
    float* at = (float*)room.of(4 * padded * BUFFERS + 64);
    call->status[i] = at ? run(*call, i, at) : 2;
  }});
}}
"""


def emit_loop(structures: Sequence[Structure]) -> str:
    """Return the source of a library with `undrift_loop`; two structures are k = 0 and k > 0."""
    parts: list[_StepCode] = []
    tensors = numbers = 0
    for structure in structures:
        parts.append(_StepCode(structure, tensors, numbers))
        tensors += _count(structure, "tensor")
        numbers += _count(structure, "number")
    steps = [" {\n    " + "\n    ".join(part.lines) + "\n    }" for part in parts]
    program = _LOOP.format(
        buffers=max(part.buffers for part in parts),
        names="\n  ".join(dict.fromkeys(name for part in parts for name in part.names)),
        steps=steps[0] if len(steps) == 1 else f"if (call.start + k == 0){steps[0]} else{steps[1]}",
    )
    kernels, here = files("undrift.gradients.kernels"), files("undrift.gradients.loops")
    sources = [kernels / "vectors.hpp", kernels / "workers.hpp", here / "loops.hpp"]
    return "".join(part.read_text(encoding="utf-8") for part in sources) + program


def _count(structure: Structure, op: str) -> int:
    return sum(node.op == op for node in structure.nodes)


class _StepCode:
    """Writes one step; its tensors and numbers begin at these places of the call's."""

    def __init__(self, structure: Structure, tensors: int, numbers: int) -> None:
        self.nodes, self.outputs = structure.nodes, structure.outputs
        self._offset = {"carry": 0, "tensor": tensors, "number": numbers}
        self._alive = self._needed()
        self._level = self._levels()
        self._stored = self._kept()
        self.buffers = len(self._stored)
        self.names = list(self._declarations())
        self.lines = list(self._step())

    def _needed(self) -> list[int]:
        """Return the nodes that the outputs depend on, in order."""
        needed = set(self.outputs)
        for i in reversed(range(len(self.nodes))):
            if i in needed:
                needed.update(self.nodes[i].args)
        return sorted(needed)

    def _levels(self) -> dict[int, int]:
        """Return the level of each node: at first as early as possible, then vectors go late.

        A vector that only later levels need is made there, so that it need not be stored.
        """
        level: dict[int, int] = {}
        for i in self._alive:
            node = self.nodes[i]
            before = max((level[a] for a in node.args), default=0)
            level[i] = before + (node.op in WHOLE)
        last = max(level.values(), default=0)
        latest = dict.fromkeys(self.outputs, last)
        for i in reversed(self._alive):
            node = self.nodes[i]
            if node.vector and node.op not in WHOLE:
                level[i] = latest.get(i, level[i])
            for a in node.args:
                use = level[i] - (node.op in WHOLE)
                latest[a] = min(latest.get(a, use), use)
        return level

    def _kept(self) -> dict[int, int]:
        """Return the vectors that need memory of their own, with the places of their buffers."""
        last = max(self._level.values(), default=0)
        kept: dict[int, int] = {}
        for i in self._alive:
            node = self.nodes[i]
            if not node.vector or node.op in GIVEN:
                continue
            uses = [(u, self.nodes[u]) for u in self._alive if i in self.nodes[u].args]
            whole = any(use.op in WHOLE for _, use in uses)
            later = any(self._level[u] > self._level[i] for u, _ in uses)
            passed_on = i in self.outputs and self._level[i] < last
            if node.op == "gradient" or whole or later or passed_on:
                kept[i] = len(kept)
        return kept

    def _place(self, node: Node) -> str:
        """Return the name of what was given to the step."""
        return f"{node.op[0]}{self._offset[node.op] + node.place}"

    def _declarations(self) -> Iterator[str]:
        for i in self._alive:
            node = self.nodes[i]
            if node.op not in self._offset:
                continue
            name, place = self._place(node), self._offset[node.op] + node.place
            if node.op == "number":
                yield f"const float {name} = call.numbers[{place}];"
            elif node.op == "carry":
                row = "i * size" if node.vector else "i"
                yield f"float* {name} = call.carries[{place}] + {row};"
            else:
                yield f"const float* {name} = call.tensors[{place}] + i * call.strides[{place}];"
        for place in range(self.buffers):
            yield f"float* b{place} = room + {place} * padded;"
        for place, out in enumerate(self.outputs):
            row = "i * size" if self.nodes[out].vector else "i"
            yield f"float* c{place} = call.carries[{place}] + {row};"

    def _memory(self, i: int) -> str:
        """Return the pointer to a vector that is in memory."""
        return f"b{self._stored[i]}" if i in self._stored else self._place(self.nodes[i])

    def _step(self) -> Iterator[str]:
        last = max(self._level.values(), default=0)
        for level in range(last + 1):
            here = [i for i in self._alive if self._level[i] == level]
            for i in here:
                if self.nodes[i].op == "gradient":
                    point = self._memory(self.nodes[i].args[0])
                    made = f"call.gradient_at({point}, {self._memory(i)}, i, k)"
                    yield f"if (const int bad = {made}) return bad;"
            for i in here:
                if not self.nodes[i].vector:
                    yield from self._single(i)
            yield from self._pass(here, is_last=level == last)
        singles = [(p, o) for p, o in enumerate(self.outputs) if not self.nodes[o].vector]
        yield from (f"*c{place} = {self._operand(out)};" for place, out in singles)

    def _single(self, i: int) -> Iterator[str]:
        """Yield the statement that makes a single number."""
        node = self.nodes[i]
        if node.op == "number":
            return
        kind = "bool" if node.condition else "float"
        if node.op in GIVEN:
            value = f"*{self._place(node)}"
        elif node.op == "norm":
            value = f"norm({self._memory(node.args[0])}, size)"
        else:
            value = EXPRESSIONS[node.op].format(*map(self._operand, node.args))
        yield f"const {kind} v{i} = {value};"

    def _operand(self, i: int) -> str:
        return self._place(self.nodes[i]) if self.nodes[i].op == "number" else f"v{i}"

    def _pass(self, here: list[int], *, is_last: bool) -> Iterator[str]:
        """Yield the pass over the coordinates that makes and stores the vectors of a level."""
        made = [i for i in here if self._is_made(i)]
        stored = [(f"b{self._stored[i]}", i) for i in made if i in self._stored]
        if is_last:
            pairs = [(p, o) for p, o in enumerate(self.outputs) if self.nodes[o].vector]
            moved = [(p, o) for p, o in pairs if self.nodes[o] != Node("carry", (), p, True)]
            stored += [(f"c{place}", out) for place, out in moved]
        if not stored:
            return
        needed = {i for _, i in stored}
        for i in reversed(made):
            if i in needed:
                needed.update(a for a in self.nodes[i].args if self.nodes[a].vector)
        yield "#pragma GCC ivdep"
        yield "for (long d = 0; d < size; ++d) {"
        for i in sorted(needed):
            kind = "bool" if self.nodes[i].condition else "float"
            if i in made:
                value = EXPRESSIONS[self.nodes[i].op].format(
                    *map(self._operand, self.nodes[i].args)
                )
            else:
                value = f"{self._memory(i)}[d]"
            yield f"const {kind} v{i} = {value};"
        yield from (f"{to}[d] = v{i};" for to, i in stored)
        yield "}"

    def _is_made(self, i: int) -> bool:
        """Return whether a pass makes the vector, which is neither given nor a gradient."""
        node = self.nodes[i]
        return node.vector and node.op not in (*GIVEN, *WHOLE)
