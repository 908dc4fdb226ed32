"""Reports made by hand: renderers read nothing else."""

from dataclasses import replace

import pytest

from nandiag.analysis.report import Finding, Origin, RankState, Report, Run, Spread, Suggestion, Verdict
from nandiag.events import TensorFact


@pytest.fixture
def harmed():
    origin = Origin(
        kind="inf", rank=3, ranks=(3,), step=417, micro_step=0, phase="forward", module="blocks.2.attn",
        module_class="Attention", op="aten.log.default", file="/home/u/train.py", line=88, column=(15, 27),
        function="forward", source="        return torch.log(p) * q",
        inputs=(TensorFact("float32", (4, 4), 16, zeros=3, min=0.0, max=1.0, absmax=1.0),),
        outputs=(TensorFact("float32", (4, 4), 16, neginf=3, min=-2.0, max=0.0, absmax=2.0),),
        host="node0", pid=811, device="cuda:3",
    )  # fmt: skip
    verdict = Verdict(
        anomaly=True, summary="-Inf born on rank 3 at step 417 in forward of blocks.2.attn", confidence="reproduced",
        reproduced=True, cause="log_of_zero", mechanism="log_of_zero", last_finite_step=416, origin=origin,
        evidence=("the input of log holds 3 zeros in 16 values; log(0) is -inf",), reasons=1,
        suggestions=(Suggestion("Keep the argument of the logarithm away from zero.", "x.clamp_min(1e-12).log()"),),
        spread=(Spread((0, 1, 2, 4, 5, 6, 7), 417, "backward", "gradient", "the gradient exchange"),),
    )  # fmt: skip
    return Report(
        run=Run(command=("nandiag", "run", "train.py")), verdict=verdict,
        findings=(Finding("nonfinite_loss", "anomaly", "NaN loss on rank 3 at step 417 (loss).", (3,), 417),),
        ranks={"3": RankState("stopped", 417, attached=True)},
    )  # fmt: skip


@pytest.fixture
def healthy():
    return Report(run=Run(), verdict=Verdict(anomaly=False, summary="no anomaly in 2 ranks, 200 steps"))


@pytest.fixture
def at_origin(harmed):
    """The harmed report with other fields of its origin: ``at_origin(source=...)``."""

    def change(**fields):
        origin = replace(harmed.verdict.origin, **fields)
        return replace(harmed, verdict=replace(harmed.verdict, origin=origin))

    return change
