"""A picture of a study: what schedules cost, and what they take for it."""

from __future__ import annotations

from tilelink.explore.views.page import picture
from tilelink.tracing.markup import FAINT, LINE, Markup, tag, words
from tilelink.tuning.study import Study, Trial

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BELOW = 560, 330, 64, 40, 16, 46
FRONT = "#c8553d"


def study_svg(study: Study) -> Markup:
    """Time against the SMs that copies take: a point for each schedule that runs, the larger the more memory it takes, and the
    Pareto front of all three in red; the line is that of time and SMs. A point's title is its schedule."""
    runs, front = study.ranked, set(study.pareto)
    times, sms = [t.us or 0.0 for t in runs], [t.sms for t in runs]
    low, high = min(times, default=0.0), max(times, default=1.0)
    most, memory = max(1, *sms, 1), max((t.nbytes for t in runs), default=0) or 1
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BELOW

    def at(trial: Trial) -> tuple[float, float]:
        share = ((trial.us or 0.0) - low) / (high - low) if high > low else 0.5
        return LEFT + 8 + (wide - 16) * trial.sms / most, TOP + tall - 8 - (tall - 16) * share

    parts = [
        words(10, 22, f"{study.problem.operator}: {len(runs)} schedules on {study.on}", size=14, weight="600"),
        tag("rect", x=LEFT, y=TOP, width=wide, height=tall, fill="none", stroke=LINE),
        words(LEFT - 6, TOP + 12, f"{high:.1f} µs", fill=FAINT, anchor="end"),
        words(LEFT - 6, TOP + tall - 4, f"{low:.1f} µs", fill=FAINT, anchor="end"),
    ]
    for count in sorted({0, most // 2, most}):
        x = LEFT + 8 + (wide - 16) * count / most
        parts.append(words(x, TOP + tall + 16, str(count), fill=FAINT, anchor="middle"))
    parts.append(words(LEFT + wide / 2, TOP + tall + 34, "SMs that copies take", fill=FAINT, anchor="middle"))
    # The fastest first: of those that are left, those that take fewer SMs.
    edge = [t for k, t in enumerate(runs) if all(t.sms < faster.sms for faster in runs[:k])]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, edge))
    parts.append(tag("polyline", points=line, fill="none", stroke=FRONT, stroke_width=1.6))
    for trial in reversed(runs):
        (x, y), kept = at(trial), trial in front
        title = tag("title", f"{trial.us or 0.0:.1f} µs, {trial.nbytes / 2**20:.1f} MiB: {trial.schedule}")
        colour = FRONT if kept else "#486a94"
        radius = 3 + 4 * trial.nbytes / memory
        parts.append(tag("circle", title, cx=x, cy=y, r=radius, fill=colour, fill_opacity=0.7 if kept else 0.35))
    return picture("study", WIDTH, HEIGHT, *parts)
