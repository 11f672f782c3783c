"""Names of what is measured, on the same weights and in branches, and what they mean."""

#: Of all metrics, the ones of a whole batch, in the order of the table, and what they are.
METRICS = {
    "loss": "cross-entropy, nats per byte",
    "kl": "KL(reference || arm) of the predictions, nats per byte",
    "kl_percent": "KL(reference || arm) of the predictions, in per cent of the reference's loss",
    "gradient_error": "|g - g_ref| / |g_ref| over all linear layers",
    "one_minus_cos": "1 - cosine of the two gradients, all linear layers",
    "embedding_error": "|g - g_ref| / |g_ref| of the embedding",
    "token_error_median": "median over tokens of |d(dx)| / |dx|, all linear layers whose rows are tokens",
    "token_error_p99": "99th percentile of the same",
    "routing_flips": "share of tokens, over the layers with a router, whose set of experts differs",
    "flushed": "share of non-zero values that quantization made 0",
    "saturated": "share of non-zero values that were cut to the largest magnitude",
    "tokens_flushed": "share of the rows of output gradients that became all 0",
    "kurtosis": "median over linear layers of the inputs' kurtosis",
    "tile_range": "median over linear layers of the inputs' range in a tile, octaves",
}
#: What is measured of the arms of a branch, means over pairs.
BRANCH_METRICS = {
    "loss_percent": "(L - L_ref) / L_ref of the validation loss in the arm's own precision, per cent",
    "loss_percent_bf16": "the same weights evaluated in BF16, per cent",
    "train_error_percent": "largest difference of the smoothed training losses, per cent",
    "diverged": "share of runs that diverged",
    "max_violation": "max(load) / mean(load) - 1 of the busiest expert, mean over the last quarter of the steps",
}
LAYER_METRICS = ("gradient_error", "token_error_median", "flushed", "saturated", "kurtosis", "tile_range")
