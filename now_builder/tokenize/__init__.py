"""Captions to ids: jieba, BPE and BERT."""
