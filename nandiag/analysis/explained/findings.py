"""The findings in words: what each slug beside the verdict means, and what to do (reader side)."""

from __future__ import annotations

from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion

EXPLAIN = (
    Explanation(
        slug="replica_diverged",
        what="Copies of weights that were bit-equal on all ranks, as DDP keeps them, no longer are, though nothing is "
        "NaN. Each rank sums the bits of its copy at the same steps into its own file; nothing is exchanged.",
        fix=(
            Suggestion(
                "Look for code that changes weights on some ranks only; where there is none, check the device that "
                "the report names: memory and ECC counts.",
            ),
            Suggestion("Resume from a checkpoint of before that step, or broadcast the weights of a rank that agrees."),
        ),
        pages=("notes/ddp.html",),
        kind="finding",
    ),
    Explanation(
        slug="nonfinite_loss",
        what="A loss that backward() was called on was NaN or Inf. The verdict says where it came from.",
        fix=(
            Suggestion(
                "Read the verdict; a loss that your log does not show may still be bad: nandiag explain "
                "hidden_nonfinite.",
            ),
        ),
        pages=("generated/torch.isfinite.html",),
        kind="finding",
    ),
    Explanation(
        slug="nonfinite_gradient",
        what="A gradient was NaN or Inf when its optimizer was about to use it. Under DDP every rank shows it, "
        "whoever made it: the verdict names the rank.",
        fix=(
            Suggestion(
                "Read the verdict. To leave out such updates on all ranks: --on-anomaly skip.",
            ),
        ),
        pages=("generated/torch.nn.utils.clip_grad_norm_.html",),
        kind="finding",
    ),
    Explanation(
        slug="nonfinite_parameter",
        what="A trainable weight was NaN or Inf, and every step from there on is lost. The verdict says which step "
        "made it so, and from where to resume.",
        fix=(
            Suggestion(
                "Resume from a checkpoint saved before the step that the report names.",
            ),
        ),
        pages=("notes/serialization.html",),
        kind="finding",
    ),
    Explanation(
        slug="nonfinite_optimizer_state",
        what="A running mean of the optimizer (momentum, second moment) was NaN or Inf. The weights follow, or "
        "stay put for ever.",
        fix=(
            Suggestion(
                "Resume from a checkpoint whose optimizer state is finite; a new optimizer over the same weights "
                "also does.",
            ),
        ),
        pages=("optim.html",),
        kind="finding",
    ),
    Explanation(
        slug="nonfinite_buffer",
        what="A buffer that was finite is so no longer: running statistics of a normalisation, a moving average, a "
        "cache. It outlives the step, and spoils evaluation even where training goes on.",
        fix=(
            Suggestion(
                "See the verdict for what flowed into it; reset it or resume from before.",
                "layer.reset_running_stats()",
            ),
        ),
        pages=("generated/torch.nn.BatchNorm2d.html",),
        kind="finding",
    ),
    Explanation(
        slug="nonfinite_frozen",
        what="A parameter that no optimizer trains was finite and is so no longer: an average of weights, a "
        "teacher, a target network.",
        fix=(
            Suggestion(
                "Look at the code that writes to it, and at the weights it is made from.",
            ),
        ),
        pages=("optim.html",),
        kind="finding",
    ),
    Explanation(
        slug="loss_scale_skip",
        what="GradScaler found gradients that are not finite, left out the update and lowered its scale. That is "
        "how it looks for the highest scale that fits, and harmless; its collapse is not (nandiag explain "
        "loss_scale_collapse).",
        fix=(
            Suggestion(
                "Nothing, where it is a few in the beginning and one now and then. A lower init_scale spares the "
                "first ones.",
                'torch.amp.GradScaler("cuda", init_scale=2.0**12)',
            ),
        ),
        pages=("amp.html",),
        kind="finding",
    ),
    Explanation(
        slug="loss_scale_found",
        what="GradScaler's scale fell very low, below 1 or in many steps in a row, and then updates were made by it "
        "again: it has found its scale. One that low tells that something next to the end of float16 is in the model.",
        fix=(
            Suggestion(
                "Keep in float32 what is that large, a loss that is a sum of squares say; or use bfloat16, which needs "
                "no scaler.",
            ),
        ),
        pages=("amp.html",),
        kind="finding",
    ),
    Explanation(
        slug="loss_skip",
        what="GradScaler left out updates because the loss itself was NaN, which no scale can mend.",
        fix=(
            Suggestion(
                "Look at the verdict for where the NaN came from; the weights are not touched by it.",
            ),
        ),
        pages=("amp.html",),
        kind="finding",
    ),
    Explanation(
        slug="script_skip",
        what="The script made no step of a bad loss by itself, or left out an update for a norm of the gradients that "
        "was not finite; or a backward call before its first update, as in a test of its own, gave bad gradients that "
        "no update used. The report shows where the first of them was made.",
        fix=(
            Suggestion(
                "Count them: many in a row mean that the data, or the weights, are bad.",
            ),
        ),
        kind="finding",
    ),
    Explanation(
        slug="stopped",
        what="nandiag ended the run at a step border, on all ranks, before bad gradients reached the weights or "
        "right after they did.",
        looks=(
            (
                "nandiag stopped the run at step 24 on ranks 0-1: non-finite gradient "
                "(layers.0.attention.qkv.weight, layers.0.attention.qkv.bias)."
            ),
        ),
        fix=(
            Suggestion(
                "Read the verdict. To go on all the same: --on-anomaly continue; to leave out such updates: "
                "--on-anomaly skip.",
            ),
        ),
        kind="finding",
    ),
    Explanation(
        slug="stopped_elsewhere",
        what="A loss was bad that did the weights no harm, and is told first for that it came first. What put the "
        "weights in danger in a later step is another line's.",
        fix=(Suggestion("Mend both lines: the one that is told first, and this one, which ended the run."),),
        kind="finding",
    ),
    Explanation(
        slug="update_left_out",
        what="nandiag left out an update on all ranks, as --on-anomaly skip asks for. The weights are as they were "
        "before that step.",
        fix=(
            Suggestion(
                "Read the verdict: what is left out again and again is not trained on.",
            ),
        ),
        kind="finding",
    ),
    Explanation(
        slug="went_on",
        what="There was harm, and the run came to its end all the same: none of it was seen in the weights, "
        "or a weight or buffer held -Inf from the start, and nothing else bad, which may be meant as a mask.",
        looks=("No gradient or weight was seen bad at an update, and so the run was not stopped.",),
        fix=(
            Suggestion(
                "Read the verdict: the next such step may not end so well. To stop at the first: --on-anomaly stop.",
            ),
        ),
        kind="finding",
    ),
    Explanation(
        slug="held_bad",
        what="A weight or a buffer was bad before the first step, or was loaded bad, and was only used later: what the "
        "run saved of it since is as bad, however early it was saved.",
        fix=(Suggestion("Mend what made it, which the verdict names, and only then resume or start anew."),),
        kind="finding",
    ),
    Explanation(
        slug="spoiled_between",
        what="The update before left the weights finite, and the step began with bad ones: the script, or a library, "
        "wrote into them in between (an average over ranks, a copy, weights that were loaded). A checkpoint that was "
        "saved behind that write holds them.",
        fix=(Suggestion("Mend what wrote into them; check a checkpoint of that very step before resuming from it."),),
        kind="finding",
    ),
    Explanation(
        slug="weights_stand_still",
        what="The state that an optimizer divides by (exp_avg_sq of Adam, square_avg of RMSprop) is Inf: each update "
        "of those weights is 0 from then on, while losses and weights stay finite.",
        fix=(Suggestion("Resume from a checkpoint of before that step, and keep its gradients from the optimizer."),),
        pages=("generated/torch.optim.Adam.html",),
        kind="finding",
    ),
    Explanation(
        slug="rank_lost",
        what="A worker and the launcher of its node are gone, and neither wrote how it ended: the node went down, was "
        "taken away, or all on it was killed. Ranks of other nodes that lost their connection to it are victims.",
        fix=(
            Suggestion(
                "Look at that node: its kernel's log, and what the scheduler says of it.", "dmesg -T | tail -50"
            ),
            Suggestion("With `--nnodes MIN:MAX` and `--max-restarts` the nodes that are left can go on."),
        ),
        pages=("elastic/run.html",),
        kind="finding",
    ),
    Explanation(
        slug="rank_killed",
        what="A worker was ended by a signal that nandiag did not send. Signal 9 is often the kernel's, for want "
        "of memory; 11 is a fault in native code.",
        fix=(
            Suggestion(
                "Signal 9: look into the kernel's log, and lower the batch size or the number of DataLoader workers.",
                "dmesg | grep -i 'killed process'",
            ),
            Suggestion(
                "Signal 11 or 6: look at the stack in the worker's stderr; check the versions of torch, driver and "
                "NCCL.",
            ),
        ),
        pages=("elastic/run.html",),
        kind="finding",
    ),
    Explanation(
        slug="rank_raised",
        what="An exception of the script left it uncaught on this rank. The other ranks are ended by the launcher.",
        fix=(
            Suggestion(
                "Read its traceback in the worker's stderr, and in the run folder.",
            ),
        ),
        pages=("elastic/errors.html",),
        kind="finding",
    ),
    Explanation(
        slug="rank_exited",
        what="The script ended itself on this rank, with an exit code other than 0.",
        fix=(
            Suggestion(
                "Look for sys.exit and os._exit in the script and in what it calls.",
            ),
        ),
        kind="finding",
    ),
    Explanation(
        slug="rank_not_attached",
        what="A worker ended before nandiag was inside it, so that nothing is known of what happened there.",
        fix=(
            Suggestion(
                "Read its stderr. Python's -E, -I and -S switch nandiag off; --inject exec is another way in.",
            ),
        ),
        kind="finding",
    ),
    Explanation(
        slug="rank_victim",
        what="A worker was ended because another failed first, or because nandiag stopped another. It is not at fault.",
        fix=(
            Suggestion(
                "Look at the rank that failed first.",
            ),
        ),
        pages=("elastic/run.html",),
        kind="finding",
    ),
    Explanation(
        slug="left_out",
        what="The report is bounded: more findings of these kinds were seen than it holds.",
        fix=(
            Suggestion(
                "All events are in the rank files of the run folder, a line of JSON each.",
            ),
        ),
        kind="finding",
    ),
    Explanation(
        slug="nonfinite_again",
        what="Losses were NaN or Inf in more steps than one, while no weight was seen bad. The report tells of the "
        "first of them; the others may have come the same way.",
        fix=(Suggestion("Mend the first, and run again: what is left comes from somewhere else."),),
        kind="finding",
    ),
    Explanation(
        slug="hidden_nonfinite",
        what="Losses were NaN or Inf, and what the script printed since shows finite ones only. Loggers that leave "
        "bad values out of their average do so (the Trainer of transformers by logging_nan_inf_filter, on by "
        "default), and so does a log that prints only now and then.",
        looks=(
            (
                "Rank 0 had 5 bad losses from step 16 on, and the 5 lines on the loss that rank 0 printed since "
                "show finite ones only: {'loss': 3.9809, 'step': 100}"
            ),
        ),
        fix=(
            Suggestion(
                "Let the logger show them.",
                "TrainingArguments(..., logging_nan_inf_filter=False)",
            ),
            Suggestion(
                "Read the verdict for where the first of them came from: a step with a NaN loss trains on nothing, "
                "or spoils the weights.",
            ),
        ),
        pages=("generated/torch.isfinite.html",),
        kind="finding",
    ),
)
