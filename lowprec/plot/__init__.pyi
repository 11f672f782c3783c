from .format_errors import errors as errors
from .sums import accumulation as accumulation
from .training import losses as losses
from .value_grid import grid as grid
