"""Weather records: opened, checked, split, normalised, and read in batches.

`open_dataset(path)` gives a `Dataset`; `Dataset.starts(split, steps)` the times a forecast can begin,
`Dataset.batch(indices, steps)` normalised arrays `[batch, lat, lon, channels]`,
`Dataset.trajectories(indices, steps)` what happened in physical units, and `Dataset.normaliser` the way
between the two.
"""

from deltaweather.data.dataset import Batch as Batch
from deltaweather.data.dataset import Dataset as Dataset
from deltaweather.data.forcing import FORCINGS as FORCINGS
from deltaweather.data.normaliser import Normaliser as Normaliser
from deltaweather.data.open import PAPER_VARIABLES as PAPER_VARIABLES
from deltaweather.data.open import open_dataset as open_dataset
from deltaweather.data.opening import StoreError as StoreError
from deltaweather.data.opening import attribution as attribution
from deltaweather.data.opening import embedded_path as embedded_path
from deltaweather.data.reader import Channel as Channel
from deltaweather.data.splits import PAPER_YEARS as PAPER_YEARS
from deltaweather.data.splits import Splits as Splits
