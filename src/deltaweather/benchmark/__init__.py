"""The benchmark of variance estimators: trainings, variances, scores and costs, stage by stage."""

from .costs import Cost as Cost
from .costs import break_even as break_even
from .estimates import Estimate as Estimate
from .estimates import Judged as Judged
from .outcome import REFERENCE as REFERENCE
from .outcome import Asked as Asked
from .outcome import Outcome as Outcome
from .question import Question as Question
from .question import Start as Start
from .question import ask as ask
from .run import result_folder as result_folder
from .run import run_benchmark as run_benchmark
from .settings import Architecture as Architecture
from .settings import BenchmarkSettings as BenchmarkSettings
from .settings import demo_settings as demo_settings
from .settings import grid_settings as grid_settings
