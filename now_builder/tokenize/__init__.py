"""Tokenize captions with Jieba, BPE, BERT, or a user's tokenizer."""
