"""What test_step_triton.py runs in processes of their own is not collected here."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted_*.py"]
