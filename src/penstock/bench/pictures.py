"""Drawing, which is optional: matplotlib is not needed for anything else."""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError


def pyplot() -> Any:
    """Return matplotlib's pyplot, set up for files, or say how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError(
            "a picture needs matplotlib, which is not installed; pip install 'penstock[plot]', or "
            "leave --plot out"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    return plt
