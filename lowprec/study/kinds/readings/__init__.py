"""Something read off a trained model in several precisions: acceptance, loss by position, flipped bits."""
