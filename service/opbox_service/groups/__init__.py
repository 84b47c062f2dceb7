"""Groups of sessions whose engines exchange arrays with each other: addresses, authentication, and the all-reduce.

No commands and no sessions here; `commands.groups` has the commands.
"""

from .addresses import GroupAddress
from .all_reduce import all_reduce
from .begun_sum import BegunSum
from .membership import Membership

__all__ = ["BegunSum", "GroupAddress", "Membership", "all_reduce"]
