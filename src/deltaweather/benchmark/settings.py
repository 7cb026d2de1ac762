"""What a benchmark run is: models, trainings, cases, hyper-parameter grids."""

from dataclasses import dataclass, field

import numpy as np

from ..models import ConvolutionConfig, GraphConfig, ModelConfig, SiteConfig
from ..training_config import Stage, TrainConfig

DROPOUT_RATES = tuple(float(r) for r in np.geomspace(5e-3, 0.8, 14))
DAMPINGS = tuple(float(d) for d in 10.0 ** np.arange(-15, 10))


@dataclass(frozen=True)
class Architecture:
    """A network under a name, and how it is trained. With dropout in `training`, its own dropout is the rival's."""

    name: str
    model: ModelConfig
    training: TrainConfig


@dataclass(frozen=True)
class BenchmarkSettings:
    """Everything that decides a benchmark's numbers, except the record.

    `validation_every` and `test_every` thin the starts: so many steps apart (4 is one a day at six hours).
    `block_length` is the number of neighbouring starts that the bootstrap of scores draws together.
    `split_leads` runs one pass of gradients for each lead, so that early quantities do not pay for late steps;
    one pass for all saves compilation where steps are cheap.
    """

    architectures: tuple[Architecture, ...]
    members: int = 10
    together: bool = False
    seeds: int = 1
    seed: int = 0
    validation_every: int = 4
    test_every: int = 4
    noise_cases: int = 4096
    fisher_cases: int = 8192
    samples: int = 10
    swag: Stage = field(default_factory=lambda: Stage(400, learning_rate=3e-4))
    swag_snapshots: int = 20
    dropout_rates: tuple[float, ...] = DROPOUT_RATES
    dampings: tuple[float, ...] = DAMPINGS
    block_length: int = 14
    repeats: int = 200
    split_leads: bool = True

    def __post_init__(self) -> None:
        if not self.architectures:
            raise ValueError("A benchmark needs at least one architecture.")
        names = [a.name for a in self.architectures]
        if len(set(names)) != len(names):
            raise ValueError(f"Every architecture needs a name of its own, but {names} was given.")
        if self.members < 3:
            raise ValueError(
                f"The ensemble is the reference and one of 3 is a baseline, so at least 3 members are needed, "
                f"but {self.members} was given."
            )
        if self.seeds < 1:
            raise ValueError(f"At least one seed of the base model is needed, but {self.seeds} was given.")


def demo_settings(members: int = 10) -> BenchmarkSettings:
    """Paris by the site network: minutes on two cores."""
    training = TrainConfig(
        (Stage(1200, 1, 2e-3), Stage(400, 4, 1e-3)), batch_size=32, evaluate_every=100, patience=6
    )
    site = Architecture("site", SiteConfig(), training)
    return BenchmarkSettings((site,), members=members, together=True, split_leads=False)


def grid_settings(members: int = 10) -> BenchmarkSettings:
    """Both architectures of the paper, sized for a processor: a mesh network and a convolutional one."""
    training = TrainConfig()
    return BenchmarkSettings(
        (
            Architecture("mesh", GraphConfig(), training),
            Architecture("convolution", ConvolutionConfig(), TrainConfig(dropout=0.05)),
        ),
        members=members,
    )
