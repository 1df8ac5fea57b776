"""The structured tasks at one setting for all tasks: ``python -m experiments sweep fixed-TASK``, by its older name.

python -m experiments.structured.fixed ocr-large --data DIR      # chunking, camvid
"""

from experiments.sweep import alias

if __name__ == "__main__":
    alias("fixed-{}")
