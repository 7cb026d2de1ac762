"""What every benchmark shares: interleaved timing, compiled memory, the machine, results on disk."""

from .compiled import Compiled as Compiled
from .compiled import compiled as compiled
from .machine import describe as describe
from .results import Cache as Cache
from .results import Row as Row
from .results import verdict as verdict
from .results import write as write
from .timing import Timing as Timing
from .timing import interleaved as interleaved
from .timing import once as once
from .timing import ratio as ratio
