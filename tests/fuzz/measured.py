"""Runs a command and writes the largest memory (KiB) of any process of it into a file: measured.py FILE COMMAND..."""

import resource
import subprocess
import sys
from pathlib import Path

code = subprocess.run(sys.argv[2:], check=False).returncode
Path(sys.argv[1]).write_text(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
