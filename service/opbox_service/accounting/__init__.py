"""What owners may have, what they used and what they did: known to the API process, and to nobody's code."""
