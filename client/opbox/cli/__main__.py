"""`python -m opbox.cli`."""

import sys

from .commands import main

sys.exit(main())
