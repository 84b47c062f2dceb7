"""`mx.profiler`: records operators' times on the engine and a program's own marks, as a Chrome trace.

mx.profiler.set_config(filename="profile.json", aggregate_stats=True)
mx.profiler.set_state("run")
…
mx.profiler.set_state("stop")
print(mx.profiler.dumps())
mx.profiler.dump()
"""

from ..absent import module_getattr
from .control import (
    dump,
    dump_profile,
    dumps,
    pause,
    profiler_set_config,
    profiler_set_state,
    resume,
    set_config,
    set_kvstore_handle,
    set_state,
)
from .marks import Counter, Domain, Event, Frame, Marker, Task

__all__ = [
    "Counter",
    "Domain",
    "Event",
    "Frame",
    "Marker",
    "Task",
    "dump",
    "dump_profile",
    "dumps",
    "pause",
    "profiler_set_config",
    "profiler_set_state",
    "resume",
    "set_config",
    "set_kvstore_handle",
    "set_state",
]

__getattr__ = module_getattr(__name__, __all__)
