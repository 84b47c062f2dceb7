"""Groups of sessions whose engines exchange arrays with each other: addresses, authentication, and the all-reduce
through the machines' memory or, on GPUs, by NCCL.

No commands and no sessions here; `commands.groups` has the commands.
"""

from .addresses import GroupAddress
from .all_reduce import agree, all_reduce, exchange_sums
from .begun_sum import BegunSum
from .device_sums import DeviceSums
from .membership import Membership

__all__ = ["BegunSum", "DeviceSums", "GroupAddress", "Membership", "agree", "all_reduce", "exchange_sums"]
