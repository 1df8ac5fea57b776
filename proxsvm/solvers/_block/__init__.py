"""The block-coordinate solver over rows of features or over a Gram matrix."""
