"""A flag that is set some calls away from a bad answer ends the run as one beside it; what good turns do does not."""

import math
import sys

import pytest

from nandiag.runtime.watch.told.ways import follow
from tests.unit.runtime.watch.ways.scripted import OFF, ON, STEP, Script


@pytest.fixture(autouse=True)
def worker(recording, monkeypatch):
    recording()
    monkeypatch.setattr(follow, "BOUNDARIES", {id(Script.way.__code__)})


class Reads(Script):
    """A script whose questions give the number back that was read, as ``item`` does."""

    def __init__(self, text):
        super().__init__("import math\n" + text)

    def ask(self, value):
        if not math.isfinite(value):
            self.ways.follow(sys._getframe(1), STEP)
        return value


TRAINER = """
class Nan:
    def on_loss(self, trainer, turn, loss):
        if not math.isfinite(loss):
            SETS
class Log:
    def __init__(self):
        self.seen = []
    def on_loss(self, trainer, turn, loss):
        self.seen.append(loss)
class Trainer:
    stop, turn, bad, skip = False, 0, 0, False
    def __init__(self, *called):
        self.called = called
    def tell(self, turn, loss):
        TELLS
    def fit(self):
        while LASTS:
            value = ask(BAD if self.turn == 3 else 1.0)
            self.tell(self.turn, value)
            if ENDS:
                return
            if not self.skip:
                value += 1
            self.turn += 1
Trainer(Log(), Nan()).fit()
"""


def trainer(**parts):
    text = TRAINER
    for name, part in {"SETS": "trainer.stop = True", "LASTS": "True", "ENDS": "self.stop", **parts}.items():
        text = text.replace(name, part)
    return text


TELLS = {
    "one after another": "for one in self.called: one.on_loss(self, turn, loss)",
    "by their names": 'for one in self.called: getattr(one, "on_loss")(self, turn, loss)',
    "all at once": "[one.on_loss(self, turn, loss) for one in self.called]",
    "each number of some": "[one.on_loss(self, turn, value) for value in [loss] for one in self.called]",
    "by a generator": "any(one.on_loss(self, turn, loss) for one in self.called)",
    "by words": "for one in self.called: one.on_loss(trainer=self, loss=loss, turn=turn)",
    "with what is packed": "given = self, turn, loss\n        for one in self.called: one.on_loss(*given)",
    "by map": "list(map(lambda one: one.on_loss(self, turn, loss), self.called))",
    "by a part": "import functools\n        for one in self.called: functools.partial(one.on_loss, self)(turn, loss)",
}
# Which way the flag is set, and what is asked of at the end of the turn.
FLAGS = {
    "by a method": ("trainer.end()\nclass Ends:\n    def end(self):\n        self.stop = True", "self.stop"),
    "by its name": ('setattr(trainer, "stop", True)', "self.stop"),
    "by how many are bad": ("trainer.bad += 1", "self.bad > 0"),
    "in a list": ("FLAGS[0] = True", "FLAGS[0]"),
}

DEATHS = {
    "a helper of a helper": """
stopped = False
def check(value):
    if not math.isfinite(value):
        mark()
def mark():
    nonlocal stopped
    stopped = True
for turn in range(9):
    value = ask(BAD if turn == 3 else 1.0)
    check(value)
    if stopped:
        return
    value += 1
""",
    "a state behind a property": """
class Trainer:
    state, turn = "runs", 0
    @property
    def running(self):
        return self.state == "runs" and self.turn < 9
    def end(self, why):
        self.state = why
    def watch(self, value):
        if not math.isfinite(value):
            self.end("bad")
    def fit(self):
        while self.running:
            value = ask(BAD if self.turn == 3 else 1.0)
            self.watch(value)
            self.turn += 1
Trainer().fit()
""",
    "handlers of an event": """
handlers = {"bad": []}
def fire(event, *given):
    return [one(*given) for one in handlers[event]]
running, turn = True, 0
def halt(turn):
    nonlocal running
    running = False
handlers["bad"].append(halt)
while running and turn < 9:
    if not math.isfinite(ask(BAD if turn == 3 else 1.0)):
        fire("bad", turn)
    turn += 1
""",
    "an attribute by the name that is given": """
class State:
    running, turn = True, 0
state = State()
def halt(one, name):
    setattr(one, name, False)
while state.running and state.turn < 9:
    if not math.isfinite(ask(BAD if state.turn == 3 else 1.0)):
        halt(state, "running")
    state.turn += 1
""",
    "a number that is kept, and looked at by another": """
class Trainer:
    newest, stop = 0.0, False
    def check(self):
        if self.is_bad():
            self.give_up()
    def is_bad(self):
        return not math.isfinite(self.newest)
    def give_up(self):
        self.stop = True
    def fit(self):
        for turn in range(9):
            value = ask(BAD if turn == 3 else 1.0)
            self.newest = value
            self.check()
            if self.stop:
                break
Trainer().fit()
""",
    "behind a way out of the check": """
class Trainer:
    stop = False
    def tell(self, value):
        self.check(value)
    def check(self, value):
        if math.isfinite(value):
            return
        self.stop = True
    def fit(self):
        for turn in range(9):
            value = ask(BAD if turn == 3 else 1.0)
            self.tell(value)
            if self.stop:
                break
Trainer().fit()
""",
    "what a check gives back to who has called it": """
class Trainer:
    stop = False
    def tell(self, value):
        if self.is_bad(value):
            self.end()
    def is_bad(self, value):
        return not math.isfinite(value)
    def end(self):
        self.stop = True
    def fit(self):
        for turn in range(9):
            value = ask(BAD if turn == 3 else 1.0)
            self.tell(value)
            if self.stop:
                break
Trainer().fit()
""",
    "a wrapped check": """
import functools
stop = False
def wrapped(check):
    @functools.wraps(check)
    def wrapper(*given, **named):
        return check(*given, **named)
    return wrapper
@wrapped
def check(turn, value):
    nonlocal stop
    if not math.isfinite(value):
        stop = True
for turn in range(9):
    value = ask(BAD if turn == 3 else 1.0)
    check(turn, value)
    if stop:
        break
""",
    "patience that is counted a call away": """
class Patience:
    def __init__(self):
        self.best, self.waits, self.over = 9.0, 0, False
    def take(self, value):
        if value < self.best:
            self.best, self.waits = value, 0
        else:
            self.waits += 1
            if self.waits >= 2:
                self.over = True
patience = Patience()
def tell(value):
    patience.take(value)
for turn in range(20):
    value = ask(BAD if turn >= 3 else 1.0 / (turn + 1))
    tell(value)
    if patience.over:
        break
""",
    "what callbacks are given in a table": """
class Nan:
    def on_batch_end(self,batch,logs):
        if math.isnan(logs.get("loss",0.0)):
            self.model.stop_training=True
class T:
    stop_training=False
    def fit(self):
        c=Nan(); c.model=self
        cbs=[c]
        def call(hook,*a,**k):
            for c in cbs: getattr(c,hook)(*a,**k)
        for i in range(9):
            v=ask(BAD if i==3 else 1.0)
            logs={"loss":v}
            call("on_batch_end",i,logs=logs)
            if self.stop_training: break
T().fit()
""",
    "an expression that calls it or not": """
class T:
    stop=False
    def end(self): self.stop=True
    def go(self): pass
    def on(self,v): self.go() if math.isfinite(v) else self.end()
    def fit(self):
        for i in range(9):
            v=ask(BAD if i==3 else 1.0)
            self.on(v)
            if self.stop: break
T().fit()
""",
    "what is called unless it is good": """
class T:
    stop=False
    def end(self): self.stop=True
    def on(self,v): math.isfinite(v) or self.end()
    def fit(self):
        for i in range(9):
            v=ask(BAD if i==3 else 1.0)
            self.on(v)
            if self.stop: break
T().fit()
""",
    "a callback of the next turn": """
class T:
    stop=False; bad=0
    def begin(self):
        if self.bad>0: self.end()
    def end(self): self.stop=True
    def on(self,v):
        if not math.isfinite(v): self.bad+=1
    def fit(self):
        for i in range(9):
            self.begin()
            if self.stop: break
            v=ask(BAD if i==3 else 1.0)
            self.on(v)
T().fit()
""",
    "an error of a callback that is caught": """
class Stop(Exception): pass
class T:
    last=0.0
    def check(self):
        if not math.isfinite(self.last): self.fail()
    def fail(self): raise Stop
    def fit(self):
        try:
            for i in range(9):
                self.last=ask(BAD if i==3 else 1.0)
                self.check()
        except Stop:
            print
T().fit()
""",
    "an exit within a callback": """
class T:
    last=0.0
    def check(self):
        if not math.isfinite(self.last): self.fail()
    def fail(self): raise SystemExit(0)
    def fit(self):
        for i in range(9):
            self.last=ask(BAD if i==3 else 1.0)
            self.check()
T().fit()
""",
    "what is told on a bus": """
class Ev:
    def __init__(self,step,loss): self.step=step; self.loss=loss
class Bus:
    def __init__(self): self.subs=[]
    def pub(self,ev):
        for f in self.subs: f(ev)
bus=Bus()
state={"run":True}
def guard(ev):
    if ev.loss!=ev.loss: stop("nan")
def stop(why): state["run"]=False
bus.subs.append(guard)
i=0
while state["run"] and i<9:
    v=ask(BAD if i==3 else 1.0)
    bus.pub(Ev(i,v))
    i+=1
""",
    "long work beside it": """
def work(v):
    s=0
    for k in range(3000): s+=k
    return s
class T:
    n=0; bad=False
    def tell(self,v):
        work(v)
        if not math.isfinite(v): self.end()
        self.n+=1
    def end(self): self.bad=True
    def fit(self):
        while self.n<9 and not self.bad:
            v=ask(BAD if self.n==3 else 1.0)
            self.tell(v)
T().fit()
""",
    "lambdas that set a key": """
st={"stop":False}
hs=[lambda v: st.update(stop=not math.isfinite(v))]
def fire(v):
    for h in hs: h(v)
i=0
while not st["stop"] and i<9:
    v=ask(BAD if i==3 else 1.0)
    fire(v); i+=1
""",
    "an event of threads": """
import threading
class T:
    def __init__(self): self.ev=threading.Event()
    def tell(self,v): self.check(v)
    def check(self,v):
        if v!=v: self.halt()
    def halt(self): self.ev.set()
    def fit(self):
        i=0
        while not self.ev.is_set() and i<9:
            v=ask(BAD if i==3 else 1.0)
            self.tell(v); i+=1
T().fit()
""",
    "a key of a table that is asked for by a method": """
class Trainer:
    def __init__(self): self.flags = {}
    def tell(self, value):
        if not math.isfinite(value): self.request("bad")
    def request(self, why): self.flags["stop"] = why
    def fit(self):
        for turn in range(9):
            value = ask(BAD if turn == 3 else 1.0)
            self.tell(value)
            if self.flags.get("stop"):
                break
Trainer().fit()
""",
    "a key that is looked for": """
flags = {}
def tell(value):
    if not math.isfinite(value): flags["stop"] = True
for turn in range(9):
    value = ask(BAD if turn == 3 else 1.0)
    tell(value)
    if "stop" in flags:
        break
""",
    "an event of the file's that a function asks of": """
import threading
event, box = threading.Event(), {"bad": 0}
def tell(handlers, **given):
    for one in handlers: one(**given)
def check(loss):
    if not math.isfinite(loss): event.set()
def over(): return event.is_set() or box["bad"] >= 3
def run():
    for epoch in range(2):
        for turn in range(4):
            loss = ask(BAD if turn == 3 else 1.0)
            tell([lambda loss: None, check], loss=loss)
            if over(): return turn
            if loss == loss:
                loss += 1
run()
""",
    "a flag of the file's that a function gives back": """
stopped = False
def check(value):
    nonlocal stopped
    if not math.isfinite(value): stopped = True
def over():
    done = stopped
    return done
for turn in range(9):
    value = ask(BAD if turn == 3 else 1.0)
    check(value)
    if over():
        break
""",
    "how many errors a function of the file's counts": """
errors = []
def check(value):
    if not math.isfinite(value): errors.append("bad")
def over(): return len(errors) > 0
for turn in range(9):
    value = ask(BAD if turn == 3 else 1.0)
    check(value)
    if over():
        break
""",
}

PASSES = {
    "a count that a function gives back beside what others are told": """
skipped, box, turn = {}, {"turn": 0}, 0
def check(value):
    if not math.isfinite(value): skipped["bad"] = True
def over():
    stop = box["turn"] >= 4
    if stop: print(skipped and "")
    return stop
def log(): return skipped.get("bad")
while True:
    value = ask(BAD if box["turn"] == 3 else 1.0)
    check(value)
    box["turn"] += 1
    if over():
        break
""",
    "a batch that is tried again": """
batches = [1.0, 1.0, 1.0, BAD, None]
while True:
    batch = batches.pop(0)
    if batch is None:
        break
    value = ask(batch)
    if not math.isfinite(value):
        batches.insert(0, 1.0)
        continue
    value += 1
""",
    "a count in a callback": trainer(
        TELLS=TELLS["one after another"], SETS="trainer.skip = True", ENDS="self.stop", LASTS="self.turn < 4"
    ),
    "a skip that each turn sets anew": trainer(
        TELLS=TELLS["all at once"], SETS="trainer.skip = math.isfinite(loss)", ENDS="self.turn >= 3"
    ),
    "a count of bad ones that is told at the end": trainer(
        TELLS=TELLS["one after another"], SETS="trainer.bad += 1", ENDS="self.turn >= 3"
    ),
    "the most turns, by a callback that is given the number too": """
class Most:
    def on_loss(self, trainer, turn, loss):
        if turn + 1 >= 4:
            trainer.stop = True
class Skip:
    def on_loss(self, trainer, turn, loss):
        trainer.skip = not math.isfinite(loss)
class Trainer:
    stop = skip = False
    def tell(self, name, *given):
        for one in (Most(), Skip()):
            getattr(one, name)(self, *given)
    def fit(self):
        for turn in range(9):
            value = ask(BAD if turn == 3 else 1.0)
            self.tell("on_loss", turn, value)
            if self.stop:
                return
            if not self.skip:
                value += 1
Trainer().fit()
""",
    "a step that good turns and bad ones count, each elsewhere": """
class Trainer:
    step = 0
    def skips(self):
        self.step += 1
    def passes_over(self):
        self.skips()
    def updates(self, value):
        self.step += 1
    def fit(self):
        while self.step < 4:
            value = ask(BAD if self.step == 3 else 1.0)
            if not math.isfinite(value):
                self.passes_over()
                continue
            self.updates(value)
Trainer().fit()
""",
    "a log of all numbers": """
class Log:
    def __init__(self):
        self.seen = []
    def take(self, value):
        self.seen.append(value)
log = Log()
def tell(value):
    log.take(value)
while len(log.seen) < 4:
    value = ask(BAD if len(log.seen) == 3 else 1.0)
    if math.isfinite(value):
        value += 1
    tell(value)
""",
    "a budget of time that is looked at in the check": """
class Trainer:
    left, stop, skipped = 4, False, 0
    def tell(self, value):
        self.check(value)
        self.tick()
    def check(self, value):
        if not math.isfinite(value):
            self.skipped += 1
    def tick(self):
        self.left -= 1
        if self.left <= 0:
            self.stop = True
    def fit(self):
        for turn in range(9):
            value = ask(BAD if turn == 3 else 1.0)
            self.tell(value)
            if self.stop:
                break
Trainer().fit()
""",
    "the most turns, by a table": """
class Stop:
    def on_batch_end(self,batch,logs):
        if batch+1>=4:
            self.model.stop_training=True
class Log:
    def on_batch_end(self,batch,logs):
        if math.isnan(logs.get("loss",0.0)):
            self.model.skipped+=1
class T:
    stop_training=False; skipped=0
    def fit(self):
        cbs=[Stop(),Log()]
        for c in cbs: c.model=self
        def call(hook,*a,**k):
            for c in cbs: getattr(c,hook)(*a,**k)
        for i in range(9):
            v=ask(BAD if i==3 else 1.0)
            logs={"loss":v}
            call("on_batch_end",i,logs=logs)
            if self.stop_training: break
T().fit()
""",
    "a budget on a bus": """
class Ev:
    def __init__(self,step,loss): self.step=step; self.loss=loss
class Bus:
    def __init__(self): self.subs=[]
    def pub(self,ev):
        for f in self.subs: f(ev)
bus=Bus()
state={"run":True,"bad":0}
def guard(ev):
    if ev.loss!=ev.loss: state["bad"]+=1
def budget(ev):
    if ev.step>=3: stop("done")
def stop(why): state["run"]=False
bus.subs+=[guard,budget]
i=0
while state["run"] and i<9:
    v=ask(BAD if i==3 else 1.0)
    bus.pub(Ev(i,v))
    i+=1
""",
    "good turns behind it, counted some calls away": """
class T:
    step=0; skipped=0
    def tell(self,v):
        if math.isfinite(v): self.update(v)
        else: self.skip()
    def update(self,v): self.count()
    def count(self): self.step+=1
    def skip(self): self.skipped+=1
    def fit(self):
        for i in range(99):
            v=ask(BAD if i==3 else 1.0)
            self.tell(v)
            if self.step>=6: return
T().fit()
""",
    "a bar that is full": """
class Bar:
    n=0; done=False
    def update(self,v,k=1):
        self.n+=k
        self.post=v
        if self.n>=4: self.close()
    def close(self): self.done=True
class T:
    def tell(self,v):
        self.bar.update(v)
    def fit(self):
        self.bar=Bar(); i=0
        while not self.bar.done:
            v=ask(BAD if i==3 else 1.0)
            if math.isfinite(v): x=1
            self.tell(v); i+=1
T().fit()
""",
    "a loss scale": """
class Scaler:
    scale=2.0; good=0
    def update(self,found):
        if found: self.back()
        else: self.good+=1
    def back(self): self.scale*=0.5; self.good=0
class T:
    n=0
    def one(self,v):
        found=not math.isfinite(v)
        self.scaler.update(found)
        self.n+=1
    def fit(self):
        self.scaler=Scaler()
        while self.n<4:
            v=ask(BAD if self.n==3 else 1.0)
            self.one(v)
T().fit()
""",
    "a tick at the end of each check": """
class T:
    n=0; stop=False
    def tell(self,v):
        try:
            self.check(v)
        finally:
            self.tick()
    def check(self,v):
        if v!=v: return
        self.good=True
    def tick(self):
        self.n+=1
        if self.n>=4: self.stop=True
    def fit(self):
        for i in range(9):
            v=ask(BAD if i==3 else 1.0)
            self.tell(v)
            if self.stop: return
T().fit()
""",
    "a tick of good ones and of bad ones": """
class T:
    n=0; stop=False; bad=0
    def tell(self,v):
        if v!=v: self.skip()
        else: self.update(v)
    def skip(self):
        self.bad+=1
        self.tick()
    def update(self,v):
        self.good=True
        self.tick()
    def tick(self):
        self.n+=1
        if self.n>=4: self.stop=True
    def fit(self):
        for i in range(9):
            v=ask(BAD if i==3 else 1.0)
            self.tell(v)
            if self.stop: return
T().fit()
""",
    "the next batch, by good ones and by bad ones": """
class T:
    def __init__(self): self.it=iter((1.0,1.0,BAD)); self.batch=next(self.it)
    def skip(self): self.advance()
    def update(self): self.advance()
    def advance(self): self.batch=next(self.it,None)
    def fit(self):
        while self.batch is not None:
            v=ask(self.batch)
            if v!=v: self.skip(); continue
            self.update()
T().fit()
""",
}


@pytest.mark.parametrize("ends", ["ENDS", "LASTS"])
@pytest.mark.parametrize("tells", TELLS)
def test_a_flag_that_what_is_called_sets_ends_the_run(tells, ends):
    parts = {"ENDS": "False", "LASTS": "not self.stop and self.turn < 9"} if ends == "LASTS" else {}
    assert Reads(trainer(TELLS=TELLS[tells], **parts)).way() == OFF


@pytest.mark.parametrize("sets", FLAGS)
def test_it_may_be_set_in_any_way(sets):
    how, asked = FLAGS[sets]
    text = trainer(TELLS=TELLS["one after another"], SETS=how.partition("\n")[0], ENDS=asked)
    text = text.replace("    stop, turn", "    def end(self):\n        self.stop = True\n    stop, turn")
    assert Reads("FLAGS = [False]" + text).way() == OFF


@pytest.mark.parametrize("what", DEATHS)
def test_what_is_done_some_calls_away_ends_the_run(what):
    assert Reads(DEATHS[what]).way() == OFF


@pytest.mark.parametrize("what", PASSES)
def test_what_good_turns_do_as_well_ends_by_itself(what):
    assert Reads(PASSES[what]).way() in {ON, None}


def test_what_is_taken_out_of_a_list_may_be_what_was_put_in_for_the_answer():
    script = Reads("""
class Trainer:
    def __init__(self): self.events, self.flags = [], {}
    def tell(self, value):
        if not math.isfinite(value): self.request("bad")
    def request(self, why): self.events.append(("stop", why))
    def dispatch(self):
        while self.events:
            key, why = self.events.pop(0)
            self.flags[key] = why
    def fit(self):
        for turn in range(9):
            value = ask(BAD if turn == 3 else 1.0)
            self.tell(value)
            self.dispatch()
            if self.flags.get("stop"):
                break
Trainer().fit()
""")
    assert script.way() is None


def test_of_what_is_called_only_so_many_lines_are_followed_and_the_rest_is_not_known():
    script = Reads("""
class Trainer:
    turn, stop = 0, False
    def tell(self, value):
        for _ in range(3000):
            value += 0
        if not math.isfinite(value):
            self.end()
    def end(self):
        self.stop = True
    def fit(self):
        while self.turn < 9 and not self.stop:
            self.tell(ask(BAD if self.turn == 3 else 1.0))
            self.turn += 1
Trainer().fit()
""")
    assert script.way() is None
    assert script.ways._events < follow._INNER_EACH + 99


@pytest.mark.parametrize(("ends", "way"), [("self.stop", None), ("self.turn == 3", ON)])
def test_behind_so_many_lines_what_is_called_may_have_set_its_flag(ends, way, monkeypatch):
    monkeypatch.setattr(follow, "_INNER", 20)
    script = Reads(
        """
class Trainer:
    turn, stop = 0, False
    def works(self, value):
        for _ in range(30):
            value += 0
    def tell(self, value):
        self.works(value)
        if not math.isfinite(value):
            self.end()
    def end(self):
        self.stop = True
    def fit(self):
        while True:
            self.tell(ask(BAD if self.turn == 3 else 1.0))
            if ENDS:
                return
            self.turn += 1
Trainer().fit()
""".replace("ENDS", ends)
    )
    assert script.way() == way
