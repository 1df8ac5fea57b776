"""TRANSITION."""
DEVICES = ()
def available(*_): return False
def __getattr__(name): return None
