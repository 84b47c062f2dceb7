"""Groups of sessions whose engines exchange arrays with each other: addresses, authentication, and the all-reduce.

No commands and no sessions here; `commands.groups` has the commands.
"""

from .addresses import GroupAddress
from .all_reduce import all_reduce
from .membership import Membership

__all__ = ["GroupAddress", "Membership", "all_reduce"]
