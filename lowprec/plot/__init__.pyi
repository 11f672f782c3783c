from .format_errors import relative_errors as relative_errors
from .sums import accumulation_error as accumulation_error
from .training import losses as losses
from .value_grid import format_values as format_values
