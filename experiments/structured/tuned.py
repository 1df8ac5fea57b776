"""The structured tasks with every method tuned alike: ``sweep TASK --scale tuned``, by its older name.

python -m experiments.structured.tuned ocr-small --data DIR      # ocr-large, chunking, camvid
"""

from experiments.sweep import alias

if __name__ == "__main__":
    alias("{}", scale="tuned")
