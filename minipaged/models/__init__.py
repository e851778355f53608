"""One decoder family, its numbers, its weights: everything between a token id and a row of logits."""
