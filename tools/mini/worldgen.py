"""The text that dsv4-mini is trained and measured on: a logbook with facts, codes, berths, filler and questions.

Pure Python and pure integers, so that a port gives the same tokens. All chance comes from one SplitMix64 stream per
conversation; `below(n)` is the high 32 bits of the next output times n, shifted right by 32. Draws happen exactly in
the order in which the code below makes them, and every choice is an index into a list of the world file or into a
list of candidates kept in order of first appearance (names and berths: cast or file order).

A conversation opens with OPENING facts. What a line can be after that (weights of 100):
  fact 19      one of 64 (name, attribute) pairs of the cast gets a value of two words, once and for all;
  log 30       a watcher logs a new code of two words. A watcher logs again only GAP tokens later, so the last 127
               tokens hold at most one code of a name, while the history holds many that contradict it;
  berth 22     a berth gets a new guest, under the same rule, one of the names with a stated fact, if possible one that
               has not been housed within GAP tokens;
  filler 15    prose, some of it about names of the cast;
  pad 2        "and so on", of a random length;
  exchange 12  a question with its answer, of one of four kinds with equal chance:
               window   the code of a name, logged at most NEAR tokens before the question;
               history  a fact stated at least FAR tokens before the question;
               across   the berth's guest stands in the window, the guest's fact at least FAR tokens back. If possible another
                        guest in the window has the same attribute, so that the attribute does not give the guest away;
               guest    the guest of a berth settled at most NEAR tokens before the question.
A line that finds no candidate becomes filler. A drill has the same lines in other weights (DRILL), with many more
questions, the across and guest kinds twice as often as the others: the first lessons are short texts of this kind. Its
facts share DRILL_ATTRIBUTES attributes, so that the attribute of an across question hardly ever names the guest, and
half of its guests are any name of the cast, so that the question for a guest cannot be guessed either.

An evaluation prompt is a conversation of exactly `boundary` tokens, padded to it, and then one question which nothing
before has asked. All that the answer needs stands before the boundary, and the question after it.
"""

from vocabulary import Vocabulary

MASK = (1 << 64) - 1
GAP, NEAR, FAR = 130, 85, 140
CAST, WATCHERS, OPENING = 24, 12, 6
# Rolls below the first five numbers give a fact, a log, a berth, filler, a pad; the rest up to 100 a question, whose kind is one of the list.
USUAL = (19, 49, 71, 86, 88), (1, 2, 3, 4)
DRILL = (8, 36, 72, 74, 75), (1, 2, 3, 3, 4, 4)
DRILL_ATTRIBUTES = 3
# The usual lines with more questions: for `train.py --lead` alone.
ASKING = (17, 42, 62, 70, 71), (1, 2, 3, 3, 4)
LONGEST_LINE = 24
REST, WINDOW, HISTORY, ACROSS, GUEST = 0, 1, 2, 3, 4
KINDS = {WINDOW: "window", HISTORY: "history", ACROSS: "across"}
EVALUATION_SEED = 0xE7A1 << 48
BOUNDARIES = [2816, 3072, 3328, 3584, 3840, 4096, 4352, 4608]


class SplitMix64:
    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return ((self.next() >> 32) * n) >> 32


class World:
    """The world file with every word as its token id."""

    def __init__(self, data):
        self.vocabulary = Vocabulary(data)
        word = self.vocabulary.word
        ids = lambda words: [word(w) for w in words]
        self.names, self.adjectives = ids(data["names"]), ids(data["adjectives"])
        self.first, self.second = ids(data["code_first"]), ids(data["code_second"])
        self.berths = ids(data["berths"])
        self.attributes = ids(data["attributes"])
        self.nouns = [ids(nouns) for nouns in data["attributes"].values()]
        self.filler = {"thing": ids(data["things"]), "verb": ids(data["verbs"]), "place": ids(data["places"]),
                       "time": ids(data["times"]), "weather": ids(data["weather"])}
        compiled = lambda text: [(None, w[1:-1]) if w[0] == "{" else (word(w), None) for w in text.split()]
        self.templates = {k: [compiled(t) for t in group] for k, group in data["templates"].items()}
        self.stop = word(".")


class Fact:
    """A stated fact. `end` is the number of tokens up to and including its sentence; `value` the position of its first value word."""

    __slots__ = ("name", "attr", "adj", "noun", "end", "value", "asked")

    def __init__(self, name, attr, adj, noun):
        self.name, self.attr, self.adj, self.noun = name, attr, adj, noun
        self.end, self.value, self.asked = None, None, False


class Conversation:
    """One logbook, grown line by line. `tokens` and `marks` run in parallel; a mark is the kind of an answer's word."""

    def __init__(self, world, seed, drill=False):
        self.world, self.rng = world, SplitMix64(seed)
        self.tokens, self.marks = [], []
        below = self.rng.below
        pool = list(range(len(world.names)))
        for i in range(CAST):
            j = i + below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        self.cast = [world.names[i] for i in pool[:CAST]]
        count = len(world.attributes)
        start = below(count) if drill else 0
        self.attributes = [(start + i) % count for i in range(DRILL_ATTRIBUTES if drill else count)]
        self.drill, self.facts, self.facts_of = drill, {}, {}
        self.logs, self.guests = {}, {}
        self.source, self.subject, self.answered = None, None, []

    # ------------------------------------------------------------------------------------------ sentences
    def say(self, template, **slots):
        for literal, slot in template:
            self.tokens.append(literal if slot is None else slots[slot])
        self.marks += [REST] * len(template)

    def pick(self, items):
        return items[self.rng.below(len(items))]

    def fill(self):
        template = self.pick(self.world.templates["filler"])
        slots = {}
        for _, slot in template:
            if slot is not None:
                slots[slot] = self.pick(self.cast if slot == "name" else self.world.filler[slot])
        self.say(template, **slots)

    def pad(self, length):
        words = [literal for literal, _ in self.world.templates["pad"][0]]
        self.tokens += [words[i % len(words)] for i in range(length - 1)] + [self.world.stop]
        self.marks += [REST] * length

    def state_fact(self):
        name, attr = self.pick(self.cast), self.pick(self.attributes)
        if (name, attr) in self.facts:
            return self.fill()
        fact = Fact(name, attr, self.pick(self.world.adjectives), self.pick(self.world.nouns[attr]))
        start = len(self.tokens)
        self.say(self.pick(self.world.templates["fact"]), name=name, attr=self.world.attributes[attr], adj=fact.adj, noun=fact.noun)
        fact.end, fact.value = len(self.tokens), start + self.tokens[start:].index(fact.adj)
        self.facts[name, attr] = fact
        self.facts_of.setdefault(name, []).append(fact)

    def log_code(self):
        here = len(self.tokens)
        free = [n for n in self.cast[:WATCHERS] if n not in self.logs or self.logs[n][2] <= here - GAP]
        if not free:
            return self.fill()
        name = self.pick(free)
        first, second = self.pick(self.world.first), self.pick(self.world.second)
        if name in self.logs and self.logs[name][0] == first:
            first = self.world.first[(self.world.first.index(first) + 1) % len(self.world.first)]
        self.say(self.pick(self.world.templates["log"]), name=name, first=first, second=second)
        self.logs[name] = (first, second, len(self.tokens), False)

    def settle_guest(self):
        here = len(self.tokens)
        free = [b for b in self.world.berths if b not in self.guests or self.guests[b][1] <= here - GAP]
        if not free:
            return self.fill()
        berth = self.pick(free)
        housed = [n for n, end in self.guests.values() if end > here - GAP]
        known = self.cast if self.drill and self.rng.below(2) else list(self.facts_of)
        name = self.pick([n for n in known if n not in housed] or known)
        time = self.pick(self.world.filler["time"])
        self.say(self.pick(self.world.templates["berth"]), berth=berth, name=name, time=time)
        self.guests[berth] = (name, len(self.tokens))

    # ------------------------------------------------------------------------------------------ questions
    def ask(self, kind, fresh):
        """A question with its answer, or False if no candidate exists. `fresh`: only what nothing has asked before."""
        here, templates = len(self.tokens), self.world.templates
        old = lambda facts: [f for f in facts if f.end <= here - FAR and not (fresh and f.asked)]
        self.source, self.subject = None, None
        if kind == WINDOW:
            near = [n for n in self.cast[:WATCHERS]
                    if n in self.logs and self.logs[n][2] >= here - NEAR and not (fresh and self.logs[n][3])]
            if not near:
                return False
            name = self.pick(near)
            first, second, end, _ = self.logs[name]
            self.logs[name] = (first, second, end, True)
            self.say(templates["ask_window"][0], name=name)
            return self.answer(kind, first, second)
        if kind == HISTORY:
            known = old(self.facts.values())
            if not known:
                return False
            fact = self.pick(known)
            self.say(templates["ask_history"][0], attr=self.world.attributes[fact.attr], name=fact.name)
        else:
            near = [b for b in self.world.berths if b in self.guests and self.guests[b][1] >= here - NEAR
                    and (kind == GUEST or old(self.facts_of.get(self.guests[b][0], [])))]
            if not near:
                return False
            berth = self.pick(near)
            if kind == GUEST:
                self.subject = self.guests[berth][0], None
                self.say(templates["ask_guest"][0], berth=berth)
                return self.answer(kind, self.guests[berth][0], None)
            known = old(self.facts_of[self.guests[berth][0]])
            others = [self.guests[b][0] for b in self.world.berths if b in self.guests and self.guests[b][1] >= here - NEAR and b != berth]
            contested = [f for f in known if any((n, f.attr) in self.facts for n in others if n != f.name)]
            fact = self.pick(contested or known)
            self.say(templates["ask_across"][0], attr=self.world.attributes[fact.attr], berth=berth)
        fact.asked, self.source = True, fact.value
        self.subject = fact.name, self.world.attributes[fact.attr]
        return self.answer(kind, fact.adj, fact.noun)

    def answer(self, kind, one, two):
        words = [one] if two is None else [one, two]
        self.answered.append((len(self.tokens), kind, self.source, self.subject))
        self.tokens += [*words, self.world.stop]
        self.marks += [kind] * len(words) + [REST]
        return True

    # ------------------------------------------------------------------------------------------ whole texts
    def line(self, weights):
        if len(self.facts) < OPENING:
            return self.state_fact()
        (fact, log, berth, filler, pad), kinds = weights
        roll = self.rng.below(100)
        if roll < fact:
            self.state_fact()
        elif roll < log:
            self.log_code()
        elif roll < berth:
            self.settle_guest()
        elif roll < filler:
            self.fill()
        elif roll < pad:
            self.pad(2 + self.rng.below(LONGEST_LINE - 2))
        elif not self.ask(self.pick(kinds), fresh=False):
            self.fill()


def training_text(world, seed, length, drill, usual=USUAL):
    """(tokens, marks, answers): tokens and marks of exactly `length`; an answer is (position of its first word, kind,
    position of the fact's first value word or None, (name, attribute or None) or None)."""
    talk = Conversation(world, seed, drill)
    while len(talk.tokens) < length:
        talk.line(DRILL if drill else usual)
    return talk.tokens[:length], talk.marks[:length], [a for a in talk.answered if a[0] < length]


def evaluation_prompt(world, index):
    """Prompt number `index`, or None if its conversation holds no fresh candidate for its kind (index mod 3: window, history, across).

    The result names its boundary, its tokens with the answer at the end, where the answer starts, and the position
    of the fact's first value word (None for window)."""
    seed = EVALUATION_SEED + index
    boundary = BOUNDARIES[SplitMix64(seed ^ MASK).below(len(BOUNDARIES))]
    talk = Conversation(world, seed)
    while len(talk.tokens) < boundary - LONGEST_LINE:
        talk.line(USUAL)
    talk.pad(boundary - len(talk.tokens))
    kind = 1 + index % 3
    if not talk.ask(kind, fresh=True):
        return None
    return {"index": index, "kind": KINDS[kind], "boundary": boundary, "tokens": talk.tokens,
            "answer_start": len(talk.tokens) - 3, "source": talk.source}
