"""``sweep TASK --scale tuned`` by its older name: python -m experiments.structured.tuned ocr-large --data DIR."""

from experiments.sweep import alias

if __name__ == "__main__":
    alias("{}", scale="tuned")
