"""The preset that sees: what it says depends on every place, tile and block, so that a wrong one shows.

That an export refuses such faults is proved for random models in tests/families/test_picture_text.py; these ask trained
weights, as a user would.
"""

import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from presets import tiny_vision
from presets.differentiable import differentiable_ops
from presets.training import evaluation_module
from tokenizers import Tokenizer

from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.errors import ExportError
from edgeformer.export import export_model
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.export.importers.pictures.picture_comparison import compare_pictures
from edgeformer.models import build_model
from edgeformer.runtime import load
from edgeformer.runtime.measure.evaluation.exact_match import evaluate
from edgeformer.runtime.measure.evaluation.questions import read_questions
from edgeformer.runtime.media.pictures.processors.processor import Processor
from edgeformer.runtime.media.pictures.processors.tiles import Tiles

FOLDER = PRESETS / "tiny-vision"
SHAPES = Path(__file__).parents[1] / "docs" / "images" / "shapes.png"
EACH = 8
"""Questions of each kind."""
