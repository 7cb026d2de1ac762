"""Message passing on a grid and its mesh, in the manner of GraphCast."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from ..grid import Grid
from ..lattice import regional_grid_mesh
from ..mesh import Edges, GridMesh, global_grid_mesh
from .layers import MLP, Dense, Dropout, LayerNorm, split_dropout
from .step import Static, StepModel


@dataclass(frozen=True)
class GraphConfig:
    """Sizes of a `GraphNet`. `mesh_level` is the icosahedron's on a global grid; `stride` and `lattices` are those of
    `regional_grid_mesh` on a regional one. With `remat` each round of messages is computed again in the
    backward pass instead of being kept.
    """

    history: int = 2
    latent: int = 32
    steps: int = 4
    mesh_level: int = 2
    stride: int = 2
    lattices: int = 3
    remat: bool = False

    @classmethod
    def tiny(cls) -> "GraphConfig":
        """For laptops: 162 mesh nodes."""
        return cls()

    @classmethod
    def small(cls) -> "GraphConfig":
        return cls(latent=64, steps=4, mesh_level=3)

    @classmethod
    def paper(cls) -> "GraphConfig":
        """A grid of 4 degrees with 227 channels: half the latents and half the rounds of GraphCast."""
        return cls(latent=256, steps=8, mesh_level=4, remat=True)

    def build_graph(self, grid: Grid) -> GridMesh:
        """The mesh for a grid: icosahedral where it goes round the globe, of nested lattices elsewhere."""
        if grid.kind == "global":
            return global_grid_mesh(grid, self.mesh_level)
        return regional_grid_mesh(grid, stride=self.stride, levels=self.lattices)


class EdgeMLP(eqx.Module):
    """The network of an edge, `MLP([edge, sender, receiver])`, with its first layer split in three.

    The first layer is linear in each part, `W [e; s; r] = W_e e + W_s s + W_r r`, so the parts of the nodes
    are computed once a node and then gathered, not once an edge: a node has some eight edges.
    """

    edge: Dense
    sender: Float[Array, "latent latent"]
    receiver: Float[Array, "latent latent"]
    second: Dense
    norm: LayerNorm

    def __init__(self, edge: int, latent: int, *, key: Key[Array, ""]) -> None:
        keys = jax.random.split(key, 4)
        # The three parts are one layer of 3 · latent inputs, and are drawn as such.
        self.edge = Dense(edge, latent, key=keys[0], scale=3**-0.5)
        self.sender = Dense(latent, latent, key=keys[1], scale=3**-0.5).weight
        self.receiver = Dense(latent, latent, key=keys[2], scale=3**-0.5).weight
        self.second = Dense(latent, latent, key=keys[3])
        self.norm = LayerNorm(latent)

    def __call__(
        self,
        edge: Float[Array, "edges in"],
        senders: Float[Array, "m latent"],
        receivers: Float[Array, "n latent"],
        edges: Edges,
    ) -> Float[Array, "edges latent"]:
        hidden = (
            self.edge(edge)
            + gather(senders @ self.sender, edges.senders)
            + gather(receivers @ self.receiver, edges.receivers)
        )
        return self.norm(self.second(jax.nn.silu(hidden)))


def gather(
    nodes: Float[Array, "nodes latent"], indices: Int[Array | np.ndarray, " edges"]
) -> Float[Array, "edges latent"]:
    """The rows of the given nodes; the graph's own indices are never out of bounds."""
    return nodes.at[jnp.asarray(indices)].get(mode="promise_in_bounds")


def gather_messages(
    messages: Float[Array, "edges latent"], edges: Edges, nodes: int
) -> Float[Array, "nodes latent"]:
    """The sum over each node's incoming edges."""
    return jax.ops.segment_sum(messages, edges.receivers, nodes, indices_are_sorted=True)


class Exchange(eqx.Module):
    """One round of messages from one set of nodes to another."""

    message: EdgeMLP
    update: MLP

    def __init__(self, edge: int, latent: int, *, key: Key[Array, ""]) -> None:
        one, two = jax.random.split(key)
        self.message = EdgeMLP(edge, latent, key=one)
        self.update = MLP(2 * latent, latent, latent, key=two)

    def __call__(
        self,
        edge: Float[Array, "edges in"],
        senders: Float[Array, "m latent"],
        receivers: Float[Array, "n latent"],
        edges: Edges,
        dropout: Dropout | None = None,
    ) -> tuple[Float[Array, "edges latent"], Float[Array, "n latent"]]:
        """The messages, and the receivers after hearing them."""
        messages = self.message(edge, senders, receivers, edges)
        heard = gather_messages(messages, edges, receivers.shape[0])
        return messages, receivers + self.update(jnp.concatenate([receivers, heard], axis=-1), dropout)


class GraphNet(StepModel):
    """Grid → multi-level mesh → rounds of messages → grid.

    Nodes and edges are embedded by networks; every network has one hidden layer, swish and a LayerNorm,
    except the last, which reads the change of the state off the cells. Cells of a regional grid whose
    neighbours lie outside the domain are treated as `regional_grid_mesh` says.
    """

    unrolled: ClassVar[bool] = False
    history: int = eqx.field(static=True)
    remat: bool = eqx.field(static=True)
    embed_cells: MLP
    embed_nodes: MLP
    embed_edges: MLP
    encode: Exchange
    update_cells: MLP
    process: tuple[Exchange, ...]
    decode: Exchange
    readout: MLP

    def __init__(
        self,
        inputs: int,
        basis: int,
        channels: int,
        config: GraphConfig,
        graph: GridMesh,
        *,
        key: Key[Array, ""],
    ) -> None:
        keys = iter(jax.random.split(key, 7 + config.steps))
        latent = config.latent
        self.history = config.history
        self.remat = config.remat
        self.embed_cells = MLP(inputs + basis + graph.grid_features.shape[1], latent, latent, key=next(keys))
        self.embed_nodes = MLP(graph.mesh_features.shape[1] + basis, latent, latent, key=next(keys))
        self.embed_edges = MLP(graph.within.features.shape[1], latent, latent, key=next(keys))
        self.encode = Exchange(graph.to_mesh.features.shape[1], latent, key=next(keys))
        self.update_cells = MLP(latent, latent, latent, key=next(keys))
        self.decode = Exchange(graph.to_grid.features.shape[1], latent, key=next(keys))
        readout = MLP(latent, latent, channels, key=next(keys), normalised=False)
        self.readout = eqx.tree_at(lambda m: m.second.weight, readout, replace_fn=lambda w: 0.1 * w)
        self.process = tuple(Exchange(latent, latent, key=k) for k in keys)

    def network(
        self,
        cells: Float[Array, "lat lon input"],
        time: Float[Array, " basis"],
        static: Static,
        *,
        dropout: Dropout | None,
    ) -> Float[Array, "lat lon channel"]:
        graph = static.graph
        if graph is None:
            raise ValueError("A GraphNet needs static.graph: build it with GraphConfig.build_graph(grid).")
        call: Callable[..., tuple[Array, Array]] = _rematerialised if self.remat else _plain
        rows, columns, _ = cells.shape
        flat = cells.reshape(rows * columns, -1)
        x = self.embed_cells(_with_date(flat, graph.grid_features, time))
        v = self.embed_nodes(_with_date(graph.mesh_features, time))
        e = self.embed_edges(jnp.asarray(graph.within.features))
        first, last, *parts = split_dropout(dropout, 2 + len(self.process))
        _, v = call(self.encode, jnp.asarray(graph.to_mesh.features), x, v, graph.to_mesh, first)
        x = x + self.update_cells(x)
        for exchange, part in zip(self.process, parts, strict=True):
            messages, v = call(exchange, e, v, v, graph.within, part)
            e = e + messages
        _, x = call(self.decode, jnp.asarray(graph.to_grid.features), v, x, graph.to_grid, last)
        return self.readout(x).reshape(rows, columns, -1)


def _with_date(*parts: Array | np.ndarray) -> Array:
    """Concatenates along the last axis, the last part repeated for every row."""
    *rows, time = parts
    dates = jnp.broadcast_to(time, (rows[0].shape[0], time.shape[0]))
    return jnp.concatenate([jnp.asarray(r) for r in rows] + [dates], axis=-1)


def _plain(exchange: Exchange, *args: object) -> tuple[Array, Array]:
    return exchange(*args)  # type: ignore[arg-type]


def _rematerialised(exchange: Exchange, *args: object) -> tuple[Array, Array]:
    return jax.checkpoint(_plain)(exchange, *args)
