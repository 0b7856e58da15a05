"""One variant in a process of its own, under a time and a memory limit."""

import multiprocessing
import os
import resource
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.zoo.results import Result
from benchmarks.zoo.variants import Variant

SECONDS, BYTES = 240, 16 << 30


def attempt(variant: Variant, folder: Path) -> Result:
    """Export, unless the file is there, and check; what fails or dies is a result too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.zoo.export"])
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_attempt, args=(variant, folder, writer))
    process.start()
    writer.close()
    result: Result | None = None
    if reader.poll(SECONDS):
        try:
            result = reader.recv()
        except EOFError:  # it died
            process.join()
    process.join(timeout=5)
    if process.is_alive():
        process.kill()
        process.join()
    if result is None:
        status = "crashed" if variant.file(folder).exists() else "not exported"
        why = f"its process ended with {process.exitcode}"
        result = Result(variant.name, status, variant.promised, why)
    return result


def _attempt(variant: Variant, folder: Path, out: Connection) -> None:
    from benchmarks.zoo.export import export

    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # torch has much to say
        os.dup2(nowhere, stream)
    path, status = variant.file(folder), "not exported"
    try:
        if not path.exists():
            export(variant, path)
        status = "crashed"
        from benchmarks.zoo.check import check

        out.send(check(variant, path))
    except Exception as error:
        out.send(Result(variant.name, status, variant.promised, _cause(error)))


def _cause(error: BaseException) -> str:
    """The first line of what it all came from, without colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]
