"""What is reported of real stalls in units and stages."""

from __future__ import annotations

import re

from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import NATIVE_LATER


@NATIVE_LATER
def test_sentences_name_units_and_microbatches(jobs: Jobs) -> None:
    """A hang in FSDP names the unit and the mesh's dimension, one in a pipeline the stage and the microbatch."""
    done = jobs.run("stalls_with_label", 2)
    [of_pipeline], [of_unit] = (one.lines() for one in done.ranks)
    unit, _, place = of_unit["sentence"].partition("; it is in ")
    assert unit == ("rank 1 has not entered all_gather_into_tensor (FSDP 1, sequence 8, default_pg, mesh dp) for 1.0 s")
    message, *_ = re.split(r"[;.] [Ii]t is in ", of_pipeline["sentence"])
    assert re.sub(r"sequence \d+", "sequence 9", message) == (  # shapes are negotiated in fewer messages in torch 2.8
        "rank 0 has not entered send (for recv of pipeline stage 1, fwd, microbatch 1, from rank 0 to rank 1, tag 0, "
        "sequence 9, default_pg, mesh dp) for 1.0 s"
    )
    assert place
