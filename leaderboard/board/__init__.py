"""Boards: comparable results in their order, and exports of them."""
