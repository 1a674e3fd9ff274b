"""`python -m kata`."""

import sys

from kata.cli import main

sys.exit(main())
