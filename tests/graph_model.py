"""Random graphs with a plan of how each step goes, and the rules in short: what such a workflow must come to.

Every outcome is planned, so the end is the same in whatever order workers, senders and sweeps get to it."""

from dataclasses import dataclass, field

# A step that the rule cancelled does not count for the status: its cause does.
BY_THE_RULE = "cancelled by the rule"

SATISFIED = {
    "success": {"succeeded"},
    "failure": {"failed", "cancelled", BY_THE_RULE},
    "terminal": {"succeeded", "failed", "cancelled", BY_THE_RULE, "skipped"},
}

# How a task goes: its plan → how it ends.
TASK_PLANS = {
    "succeed": "succeeded",
    "retry": "succeeded",
    "abandon": "succeeded",
    "release": "succeeded",
    "by_hand": "succeeded",
    "fail": "failed",
    "exhaust": "failed",
    "cancel": "cancelled",
}
TASK_WEIGHTS = [8, 2, 1, 2, 1, 3, 1, 1]
EVENT_PLANS = {"send": "succeeded", "fail": "failed", "skip": "skipped", "succeed": "succeeded", "by_hand": "failed"}
EVENT_WEIGHTS = [6, 1, 1, 1, 1]
# Conditions: the path → what becomes of the released step; None = it runs.
CONDITIONS = {"$.input.yes": None, "$.input.no": "skipped", "$.input.missing == 1": "skipped", "$.input.n": "failed"}


@dataclass
class Step:
    key: str
    kind: str
    after: dict[str, str] = field(default_factory=dict)
    join: str = "all"
    when: str | None = None
    holds: str | None = None
    optional: bool = False
    plan: str = "succeed"
    output: object = None


class Graph:
    def __init__(self, draw, name, task):
        self.name, self.task = name, task
        count = draw.randint(1, 25)
        keys = [f"s{n:02}" for n in range(count)]
        draw.shuffle(keys)
        self.steps = {}
        for n, key in enumerate(keys):
            self.steps[key] = self._step(draw, key, keys[:n])
        self.listed = draw.sample(keys, count)

    def _step(self, draw, key, before):
        step = Step(key, draw.choices(["task", "event", "delay"], [14, 4, 2])[0])
        width = min(len(before), draw.choices([0, 1, 2, 3, 6], [2, 6, 5, 2, 1])[0])
        words = draw.choices(["success", "failure", "terminal"], [6, 2, 3], k=width)
        step.after = dict(zip(draw.sample(before, width), words, strict=True))
        step.join = draw.choices(["all", "some", "first"], [6, 2, 2])[0]
        step.optional = draw.random() < 0.2
        if draw.random() < 0.2:
            step.when, step.holds = draw.choice(list(CONDITIONS.items()))
        elif step.after and step.join != "first" and draw.random() < 0.2:
            # Of a step that has ended whenever this one is released.
            read = draw.choice(list(step.after))
            step.when = f'$.steps.{read}.status == "succeeded"'
        plans, weights = {"task": (TASK_PLANS, TASK_WEIGHTS), "event": (EVENT_PLANS, EVENT_WEIGHTS)}.get(
            step.kind, (None, None)
        )
        if plans:
            step.plan = draw.choices(list(plans), weights)[0]
        step.output = {"of": key} if step.kind == "task" or step.plan == "send" else None
        return step

    def definition(self):
        return {"name": self.name, "steps": [self._json(self.steps[key]) for key in self.listed]}

    def _json(self, step):
        json = {"key": step.key, "join": step.join, "optional": step.optional}
        if step.after:
            json["after"] = [{"step": key, "on": word} for key, word in step.after.items()]
        if step.when:
            json["when"] = step.when
        if step.kind == "task":
            json |= {"task": self.task, "retry": {"initial": "0", "max_attempts": 2 if step.plan == "exhaust" else 6}}
        elif step.kind == "event":
            json["event"] = None
            if step.plan in ("fail", "skip", "succeed"):
                json |= {"timeout": "1 ms", "on_timeout": step.plan}
        else:
            json["delay"] = "1 ms"
        return json

    def ends(self):
        """Step → how it ends, prerequisites first."""
        ends = {}
        for step in self.steps.values():  # in the order they were made, so prerequisites come first
            ends[step.key] = self._end(step, ends)
        return ends

    def _end(self, step, ends):
        satisfied = [ends[key] in SATISFIED[word] for key, word in step.after.items()]
        if step.after and not (all(satisfied) if step.join == "all" else any(satisfied)):
            return BY_THE_RULE
        if step.when and step.when.startswith("$.steps"):
            read = step.when.split(".")[2]
            if ends[read] != "succeeded":
                return "skipped"
        elif step.holds:
            return step.holds
        if step.kind == "task":
            return TASK_PLANS[step.plan]
        if step.kind == "event":
            return EVENT_PLANS[step.plan]
        return "succeeded"

    def status(self, ends):
        bad = [key for key, end in ends.items() if end in ("failed", "cancelled") and not self.steps[key].optional]
        return "failed" if bad else "succeeded"

    def result(self, ends):
        """What a succeeded workflow answers: the output of the only sink, or an object of all that succeeded."""
        inner = {key for step in self.steps.values() for key in step.after}
        sinks = {key: self.steps[key].output for key in self.steps if key not in inner}
        if len(sinks) == 1:
            ((key, output),) = sinks.items()
            return output if ends[key] == "succeeded" else None
        return {key: output for key, output in sinks.items() if ends[key] == "succeeded"} or None
