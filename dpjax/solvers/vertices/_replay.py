"""The shape of a method that releases vertices drawn from its scores, and its replay."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.core import PyTree
from dpjax.solvers.vertices._steps import coordinates


class VertexInfo(NamedTuple):
    """Released in a step.

    Attributes:
      indices: The vertices drawn, `[draws]` int32 for each block; -1 where none was drawn.
    """

    indices: tuple[jax.Array, ...]


class Replay(NamedTuple):
    """What every draw of a run was a softmax of, given what was drawn. **Not private**.

    Attributes:
      logits: For each block `[S + 1, m]`; the last row is that of the draws for the result.
      drawn: Whether there was a draw, `[S + 1]`.
    """

    logits: tuple[jax.Array, ...]
    drawn: jax.Array


class VertexSolver:
    """A step in four parts: `prepare`, `sample`, `accept` and, alone in seeing data, `advance`.

    Here are the parts for draws from the softmax of the scores; `draws_last` says whether there is
    a draw after the last step.
    """

    def step(
        self: Any, problem: Any, batch: PyTree, mask: jax.Array, state: Any
    ) -> tuple[Any, VertexInfo]:
        """Draws vertices, then moves the scores by the records of `batch` where `mask [B]`."""
        state = self.prepare(problem, state)
        indices = self.sample(problem, state)
        state = self.accept(problem, indices, state)
        return self.advance(problem, batch, mask, state), VertexInfo(indices)

    draws_last = True

    def prepare(self: Any, problem: Any, state: Any) -> Any:
        """Nothing to do before a draw."""
        del problem
        return state

    def logits(self: Any, problem: Any, state: Any) -> tuple[jax.Array, ...]:
        """What a draw now is the softmax of, `[m]` a block, up to a shift. **Not private**."""
        pairs = zip(problem.domains, state.scores, strict=True)
        return tuple(coordinates(domain).logits(*score) for domain, score in pairs)

    def redact(self: Any, state: Any) -> Any:
        """The state without the scores, which no draw covers."""
        return state._replace(scores=None)

    def replay(self: Any, problem: Any, data: PyTree, info: VertexInfo, xs: PyTree) -> Replay:
        """The scores of a run on `data` if it drew what `info` says. **Not private**.

        With two neighbours in turn it shows how far one record moves the logits of each draw, which
        is what the guarantee bounds.

        Args:
          problem: What was solved.
          data: Tree of leaves `[n, ...]`, of as many records as the run had.
          info: Of a solution.
          xs: The batches: `sampler.plan(...)`.

        Returns:
          The logits of every draw.

        Example:
          >>> import dpjax, jax, jax.numpy as jnp
          >>> game = dpjax.problems.Saddle.matrix_game((3, 3))
          >>> sampler = dpjax.sampling.TaperedPartition(4, 20, order="given")
          >>> solver = dpjax.solvers.SaddleMirrorDescent(sampler, (0.1, 0.1), (2.0, 2.0))
          >>> data = {"A": jnp.ones((20, 3, 3))}
          >>> info = dpjax.solve(solver, game, data, key=jax.random.key(0)).info
          >>> again = solver.replay(game, data, info, sampler.plan(jax.random.key(1), 20))
          >>> again.logits[0].shape, bool(again.drawn.all())
          ((5, 3), True)
        """
        data = jax.tree.map(jnp.asarray, data)
        num_records = jax.tree.leaves(data)[0].shape[0]

        def body(state: Any, inputs: Any) -> tuple[Any, Any]:
            x, indices = inputs
            rows, mask = self.sampler.batch(x, num_records)
            batch = jax.tree.map(lambda a: a[rows], data)
            state = self.prepare(problem, state)
            seen = self.logits(problem, state), jnp.asarray(self.draws_now(state))
            state = self.accept(problem, indices, state)
            return self.advance(problem, batch, mask, state), seen

        # nothing is drawn from this key: the draws are given
        start = self.init(problem, key=jax.random.key(0))
        state, (logits, drawn) = jax.lax.scan(body, start, (xs, info.indices))
        last = self.logits(problem, self.prepare(problem, state))
        joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), logits, last)
        return Replay(joined, jnp.append(drawn, self.draws_last))
