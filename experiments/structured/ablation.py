"""``sweep ablation-TASK`` by its older name: python -m experiments.structured.ablation ocr-large --data DIR."""

from experiments.sweep import alias

if __name__ == "__main__":
    alias("ablation-{}")
