"""What ONNX Runtime's profiler tells of a model: one event for every step of every run."""

import json
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime as ort

import sparsify
from benchmarks.paired import Feeds

Event = dict[str, Any]


def events(path: Path, feeds: Feeds, *, threads: int = 0, runs: int = 1) -> list[Event]:
    """Run a model, library registered, so often with the profiler on; 0 threads means all."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_profiling = True
    for library in sparsify.library_paths():
        options.register_custom_ops_library(str(library))
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        active = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for _ in range(runs):
            active.run(None, dict(feeds))
        found: list[Event] = json.loads(Path(active.end_profiling()).read_text(encoding="utf-8"))
    return found
