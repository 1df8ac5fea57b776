"""What test_step_triton.py runs in processes of their own is not collected here."""

import os

IN_THEIR_OWN = ["interpreted_step.py", "interpreted_criterion.py"]
collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else IN_THEIR_OWN
