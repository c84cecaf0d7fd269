"""Plot the loss of a training run."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

SMOOTHED = 0.95
"""Fraction of the moving average that each step keeps."""


def draw_loss(losses: Sequence[float], name: str, path: Path) -> None:
    """Draw the loss of every step, in nats per token, and its moving average."""
    average, averages = losses[0], []
    for loss in losses:
        average = SMOOTHED * average + (1 - SMOOTHED) * loss
        averages.append(average)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss, nats a token", yscale="log", title=name)
    axes.plot(losses, color="0.8", linewidth=0.6)
    axes.plot(averages, color="tab:blue")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
