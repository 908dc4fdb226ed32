"""The early warnings in words: what each means while all is still finite, and what to do (reader side)."""

from __future__ import annotations

from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion

EXPLAIN = (
    Explanation(
        slug="grad_norm_spike",
        what="The gradient norm of a step is far above all that this run showed before. All is still finite; one "
        "such update can throw the weights far, and often the loss follows.",
        looks=(
            ("Rank 0, step 53: the gradient norm is 459002, 30 times the largest of the last 53 steps (median 4.976)."),
        ),
        fix=(
            Suggestion(
                "Clip the gradients before each update.",
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            ),
            Suggestion(
                "Look at the batch of that step: a spike with a spike of the loss is a sample far from the others "
                "(nandiag explain data_outlier).",
            ),
        ),
        pages=("generated/torch.nn.utils.clip_grad_norm_.html",),
        kind="warning",
    ),
    Explanation(
        slug="grad_norm_growth",
        what="Gradient norm and loss grow from step to step. All is still finite; where the growth goes on the run "
        "diverges within some more steps.",
        fix=(
            Suggestion(
                "Lower the learning rate, or warm up over more steps (nandiag explain lr_divergence).",
            ),
            Suggestion(
                "Clip the gradients before each update.",
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            ),
        ),
        pages=(
            "optim.html",
            "generated/torch.nn.utils.clip_grad_norm_.html",
        ),
        kind="warning",
    ),
    Explanation(
        slug="loss_spike",
        what="The loss jumped far above what it was in the steps before, and is still finite. A batch unlike the "
        "others, or an update that went too far, is behind it.",
        looks=("Rank 0, step 42: the loss is 202.1; it was at most 14.43 in the last 42 steps (median -0.2856).",),
        fix=(
            Suggestion(
                "Look at the batch of that step; where the loss does not come back, resume from before it and "
                "leave the batch out.",
            ),
            Suggestion(
                "Where it recurs: lower the learning rate, clip the gradients.",
            ),
        ),
        pages=("optim.html",),
        kind="warning",
    ),
    Explanation(
        slug="lr_out_of_range",
        what="The learning rate is negative, NaN or infinite. A negative one climbs the loss; NaN or Inf spoils "
        "every weight with the next update.",
        fix=(
            Suggestion(
                "Keep the schedule within its ends (nandiag explain lr_invalid).",
                "LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total_steps))",
            ),
        ),
        pages=(
            "optim.html",
            "generated/torch.optim.lr_scheduler.LambdaLR.html",
        ),
        kind="warning",
    ),
    Explanation(
        slug="lr_jump",
        what="The learning rate rose in one step by far more than any step before it did, and above what its "
        "schedule was given.",
        fix=(
            Suggestion(
                "Check what steps the scheduler, and how often: each batch or each epoch, once or on each rank.",
            ),
            Suggestion(
                "After a resume, load the scheduler's state too.",
                'scheduler.load_state_dict(state["scheduler"])',
            ),
        ),
        pages=("optim.html",),
        kind="warning",
    ),
    Explanation(
        slug="loss_scale_falling",
        what="GradScaler lowers its scale step after step and makes no update meanwhile. A few times is its "
        "search; where it goes on, something in the float16 forward overflows at any scale.",
        fix=(
            Suggestion(
                "See nandiag explain loss_scale_collapse for what to look at, before the scale is gone.",
            ),
        ),
        pages=(
            "amp.html",
            "notes/amp_examples.html",
        ),
        kind="warning",
    ),
    Explanation(
        slug="batch_outlier",
        what="A batch holds a value far larger than any that this run was given before. Each batch that enters a "
        "root module is held against the running mean and deviation of those before it, by logarithms; the "
        "sample is named, with its index where a DataLoader fetched it. Masks and integers are left out.",
        fix=(
            Suggestion("Look at that sample: a unit, a sensor, a decimal point, a missing value written as 1e9."),
            Suggestion(
                "Drop or clip what lies far out, by statistics of the training set (a z-score filter).",
                "x = ((x - mean) / (std + 1e-6)).clamp(-8, 8)",
            ),
        ),
        pages=("data.html",),
        kind="warning",
    ),
    Explanation(
        slug="batch_longer",
        what="Where a step went wrong, or its loss or gradients left their usual range, its batch has three times as "
        "many values as any before it, or more. A recurrence, a sum or a product over them grows with their number, "
        "and may leave the range that all shorter ones kept to.",
        fix=(
            Suggestion("Cut long samples into pieces while loading, or drop what is longer than a bound."),
            Suggestion("Divide a sum by its count, and multiply probabilities as sums of logarithms."),
        ),
        pages=("data.html",),
        kind="warning",
    ),
    Explanation(
        slug="batch_channel",
        what="One channel of the input is a thousand times as large as half of the others. It drowns them in the first "
        "layer, and its gradients set the pace of all.",
        fix=(
            Suggestion(
                "Normalise each channel by its own mean and deviation over the training set.",
                "x = (x - mean) / (std + 1e-6)",
            ),
        ),
        pages=("data.html", "generated/torch.nn.BatchNorm1d.html"),
        kind="warning",
    ),
    Explanation(
        slug="half_headroom",
        what="A float16 activation comes near to 65504, the largest number of float16. A forward is looked into every "
        "50 steps where float16 is in use; the overflow is foretold by a straight line through the logarithms of the "
        "looks, and only where at least four lie on one.",
        fix=(
            Suggestion("Use bfloat16 where the device has it: it reaches as far as float32.", "dtype=torch.bfloat16"),
            Suggestion(
                "Attention logits: normalise queries and keys, or let scaled_dot_product_attention do it.",
                "q, k = norm_q(q), norm_k(k)",
            ),
            Suggestion(
                "Run this op in float32.", "with torch.autocast(x.device.type, enabled=False):\n    y = f(x.float())"
            ),
            Suggestion("Lower the learning rate or raise the weight decay of what grows."),
        ),
        pages=("amp.html", "generated/torch.nn.functional.scaled_dot_product_attention.html"),
        kind="warning",
    ),
    Explanation(
        slug="second_moment_underflow",
        what="Adam divides by the root of its second moment plus eps. Where the moment is too small for its dtype it "
        "is zero, and the update is the first moment over eps: hundreds of learning rates, or infinite where eps "
        "is too small for the dtype as well.",
        fix=(
            Suggestion("Keep the parameters that are trained, and with them the state, in float32; use autocast."),
            Suggestion(
                "Or raise eps to what the dtype can hold beside such gradients.",
                "torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-4)",
            ),
        ),
        pages=("generated/torch.optim.AdamW.html", "amp.html"),
        kind="warning",
    ),
    Explanation(
        slug="gradients_zero",
        what="All gradients of an optimizer are exactly 0, for many steps in a row, and the loss is not. Such steps "
        "train nothing, while the log looks calm. A clip by a norm that is infinite multiplies them by 0; a model "
        "whose units are all dead, a loss cut off at a limit, or half precision that rounds them to 0 have the same "
        "look. A phase may rest by design (free bits, no reward yet): then it is told ever more seldom.",
        looks=(
            (
                "Rank 0, step 13: all gradients of SGD are exactly 0, for 10 steps in a row, while the loss is 48.2: "
                "these steps trained nothing."
            ),
        ),
        fix=(
            Suggestion(
                "Take the norm that gradients are clipped by in float32, and look whether it is finite.",
                "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)",
            ),
            Suggestion("Look at what the loss is made of: a clamp at its limit, or a ReLU below 0, has no gradient."),
            Suggestion("In half precision scale the loss.", "scaler = torch.amp.GradScaler(device)"),
        ),
        pages=("generated/torch.nn.utils.clip_grad_norm_.html", "amp.html"),
        kind="warning",
    ),
    Explanation(
        slug="losses_passed_over",
        what="The script asks whether its loss is finite, and for a while now none was: it passes over each, and makes "
        "no update. It runs on without training. Told as it runs; at the end the report counts them, and where it went "
        "on so to the end that is an anomaly (20 losses or more).",
        looks=("Rank 1, step 30: the script made no step of 8 NaN losses in a row, and no update since step 30.",),
        fix=(
            Suggestion("End the run: the report shows where the first of these losses was made."),
            Suggestion("Have the script give up after some in a row.", "assert skipped_in_a_row < 20"),
        ),
        pages=("generated/torch.isfinite.html",),
        kind="warning",
    ),
    Explanation(
        slug="weights_unchanged",
        what="Updates in a row left weights as they were, to the bit, though their gradients are not 0 and the "
        "learning rate is as large as ever. What the optimizer divides by is infinite (Adam with a beta2 of 1 in "
        "mid-run, a second moment that overflowed), or half precision rounds each update to nothing.",
        looks=(
            (
                "Rank 0, step 11: 5 updates of Adam in a row did not change a.weight and 3 more (386 values, float32): "
                "the gradient norm is 0.31, the learning rate 0.0005."
            ),
        ),
        fix=(
            Suggestion("Look at what the optimizer was told: each beta is to be below 1.", "betas=(0.9, 0.999)"),
            Suggestion("Look at its state for infinities.", "optimizer.state_dict()"),
            Suggestion("In half precision keep the weights that are trained in float32, and use autocast."),
        ),
        pages=("generated/torch.optim.Adam.html", "amp.html"),
        kind="warning",
    ),
    Explanation(
        slug="nothing_to_draw",
        what="torch.multinomial was given weights that sum to 0, in one row at least, and ended the script. None of "
        "them is bad: a mask allows nothing there, all priorities have come down to 0, or exponentials are too small "
        "to be told from 0.",
        looks=(
            (
                "Rank 0, step 17: legal sums to 0 in row 3 of 8 (drawn from at play.py:8); "
                "legal is probs * allowed (set at play.py:7), and allowed is 0 there."
            ),
        ),
        fix=(
            Suggestion(
                "Say what is drawn where nothing is allowed.",
                "weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, torch.ones_like(weights))",
            ),
            Suggestion(
                "Draw by the logarithms of the weights: the largest is taken away before exponentials are taken.",
                "torch.distributions.Categorical(logits=scores).sample()",
            ),
            Suggestion("Keep priorities above 0.", "priorities = errors.abs() + 1e-6"),
        ),
        pages=("generated/torch.multinomial.html", "distributions.html#categorical"),
        kind="warning",
    ),
    Explanation(
        slug="matrix_refused",
        what="A call of linear algebra (cholesky, inv, solve, eigh) found no such factor of a matrix, and ended the "
        "script. All of it is finite: rounding has taken a small eigenvalue below 0, two rows are equal, there are "
        "fewer samples than columns, or it is no covariance at all.",
        looks=(
            (
                "Rank 0, step 7: cholesky refused K (6 x 6, float32) (at gp.py:9): its least eigenvalue is -2.4e-8, "
                "its largest 6; rows 0 and 1 are equal."
            ),
        ),
        fix=(
            Suggestion(
                "Add to the diagonal what rounding takes away, or the variance of the noise.",
                "K = K + 1e-5 * torch.eye(K.shape[-1], device=K.device)",
            ),
            Suggestion("Make such matrices in float64.", "K = kernel(x.double())"),
        ),
        pages=("generated/torch.linalg.cholesky.html", "generated/torch.linalg.inv.html"),
        kind="warning",
    ),
    Explanation(
        slug="argument_refused",
        what="A distribution of torch was given an argument out of its range, and ended the script. All of it is "
        "finite: an exponential became so small that it is 0, say, where a scale has to be above 0.",
        looks=(
            (
                "Rank 0, step 7: Normal refused its scale, torch.exp(s) (at policy.py:9): 1 value of 6 is not above 0 "
                "(0): the exponential is so small that it is 0."
            ),
        ),
        fix=(
            Suggestion("Bound what goes into the exponential.", "scale = log_scale.clamp(-20, 2).exp()"),
            Suggestion("Or keep the scale above 0.", "scale = torch.nn.functional.softplus(s) + 1e-6"),
        ),
        pages=("distributions.html",),
        kind="warning",
    ),
)
