"""What every peer's script is asked for by tests/bench/peers."""
import argparse


def parser_for(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--batch", default="1,8,16")
    return parser


def batches_of(options):
    """The numbers of sequences at once, and the largest."""
    batches = [int(b) for b in options.batch.split(",") if int(b) > 0]
    return batches, max(batches, default=1)
