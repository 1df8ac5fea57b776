"""Structured losses on real data: OCR letters, CoNLL-2000 chunking, CamVid."""
