"""Whole trained models, before and after: `python -m benchmarks.models`.

Every model runs as published, rewritten with our library, and rewritten in stock ONNX Runtime.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import sparsify
from rich.progress import track

from benchmarks.conversion import Conversion, convert
from benchmarks.document import Table, console, duration, show, write_section
from benchmarks.inputs import Subject, subjects
from benchmarks.paired import Feeds, Ratio, interleave, ratio, session
from sparsify.verification import output_error
