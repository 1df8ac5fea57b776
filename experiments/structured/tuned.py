"""The structured tasks with every method tuned alike: ``sweep TASK --scale tuned``, by its older name.

    python -m experiments.structured.tuned ocr-small --data DIR      # ocr-large, chunking, camvid

Every method starts from three values of η; while the best one is at an edge, the grid grows there. Held-out data
determine η (one seed, shorter runs) and then, in new runs with three further seeds, the epoch and whether to average.
The test set is read at the end of these, with the best weights and the best average. Results:
experiments/results/tuned/TASK.jsonl.
"""

from experiments.sweep import alias

if __name__ == "__main__":
    alias("{}", scale="tuned")
