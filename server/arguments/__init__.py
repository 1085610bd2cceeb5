"""The argparse layer: flags, provenance, resolution and the printed tables."""
