"""What γ contributes on the structured tasks: ``python -m experiments sweep ablation-TASK``, by its older name.

python -m experiments.structured.ablation ocr-large --data DIR      # chunking, camvid
"""

from experiments.sweep import alias

if __name__ == "__main__":
    alias("ablation-{}")
