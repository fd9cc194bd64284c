//! A logbook, grown line by line, and the questions about it.
//!
//! All chance comes from one stream, and draws happen in the order in which the code makes them;
//! candidates stand in the order of their first appearance (names and berths: in that of the cast and of
//! the world file). The kinds of lines and their shares are stated in `tools/mini/worldgen.py`.
//!
//! A name logs again, and a berth gets a new guest, only [`GAP`] tokens later. So the last 127 tokens hold at
//! most one code of a name, and the history holds many that contradict it.

use std::collections::BTreeMap;

use crate::chance::SplitMix64;
use crate::world::{Gap, Template, Word, World};

const GAP: usize = 130;
/// Farthest that the source of an answer in the window lies before its question.
const NEAR: usize = 85;
/// Nearest that a fact of the history lies before its question.
const FAR: usize = 140;
/// People of a text.
pub(crate) const CAST: usize = 24;
/// The first so many of the cast log codes.
const WATCHERS: usize = 12;
/// Facts that a text opens with.
const OPENING: usize = 6;
/// No line has more tokens.
const LONGEST_LINE: usize = 24;
/// Marks the evaluation prompts' seeds; training takes none of these.
const EVALUATION_SEED: u64 = 0xE7A1 << 48;
const EVALUATION_BOUNDARIES: [usize; 8] = [2816, 3072, 3328, 3584, 3840, 4096, 4352, 4608];

/// Where the answer to a question is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Third {
    /// A code within the last 127 tokens, which older codes of the same name contradict.
    Window,
    /// A fact hundreds to thousands of tokens back.
    History,
    /// A name in the window, then that name's fact in the history.
    Across,
}

impl Third {
    /// All, in the order of evaluation prompts.
    pub const ALL: [Self; 3] = [Self::Window, Self::History, Self::Across];

    /// Its name in files and results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::History => "history",
            Self::Across => "across",
        }
    }
}

/// What a line of the text itself asks: a third, or only for a berth's guest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Topic {
    Third(Third),
    Guest,
}

/// A question that follows a text, with its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// Where the answer is.
    pub third: Third,
    /// The question.
    pub ids: Vec<u32>,
    /// The words of the right answer.
    pub answer: [u32; 2],
}

/// One of the prompts that the model's card gives figures of.
#[derive(Clone, Debug)]
pub struct EvaluationPrompt {
    /// Tokens of the text; the question stands behind them.
    pub boundary: usize,
    /// Text and question.
    pub ids: Vec<u32>,
    /// The question alone.
    pub question: Question,
}

/// What a question's answer is.
enum Answer {
    One(u32),
    Two([u32; 2]),
}

#[derive(Clone, Debug)]
struct Fact {
    name: u32,
    attribute: usize,
    value: [u32; 2],
    /// Tokens up to the end of its sentence.
    end: usize,
    asked: bool,
}

#[derive(Clone, Debug)]
struct Code {
    words: [u32; 2],
    end: usize,
    asked: bool,
}

#[derive(Clone, Copy, Debug)]
struct Guest {
    name: u32,
    end: usize,
}

/// Which candidates a question may be about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Candidates {
    All,
    /// Only what nothing before has asked.
    Fresh,
}

/// A text under way.
#[derive(Clone, Debug)]
pub struct Logbook<'w> {
    world: &'w World,
    chance: SplitMix64,
    ids: Vec<u32>,
    cast: Vec<u32>,
    facts: Vec<Fact>,
    codes: BTreeMap<u32, Code>,
    guests: BTreeMap<u32, Guest>,
}

impl<'w> Logbook<'w> {
    /// An empty text; equal seeds give equal texts.
    pub fn new(world: &'w World, seed: u64) -> Self {
        let mut chance = SplitMix64::new(seed);
        let mut cast = world.names.clone();
        for i in 0..CAST {
            let j = i + chance.below(cast.len() - i);
            cast.swap(i, j);
        }
        cast.truncate(CAST);
        Self {
            world,
            chance,
            ids: Vec::new(),
            cast,
            facts: Vec::new(),
            codes: BTreeMap::new(),
            guests: BTreeMap::new(),
        }
    }

    /// The text so far.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Writes lines until the text has exactly `tokens` tokens. Does nothing where it has as many.
    pub fn grow(&mut self, tokens: usize) {
        while self.ids.len() + LONGEST_LINE < tokens {
            self.line();
        }
        if let Some(missing) = tokens.checked_sub(self.ids.len()).filter(|&missing| missing > 0) {
            self.pad(missing);
        }
    }

    /// A question about what nothing has asked for yet, or none where there is no candidate. The text does not
    /// change; what the question is about counts as asked for.
    pub fn ask(&mut self, third: Third) -> Option<Question> {
        let (ids, answer) = self.question(Topic::Third(third), Candidates::Fresh)?;
        match answer {
            Answer::Two(answer) => Some(Question { third, ids, answer }),
            Answer::One(_) => unreachable!("the answers of thirds have two words"),
        }
    }

    /// Appends a question and its right answer.
    pub fn exchange(&mut self, question: &Question) {
        self.ids.extend(&question.ids);
        self.ids.extend(question.answer);
        self.ids.push(self.world.stop);
    }

    fn say(&mut self, template: &Template, fill: impl FnMut(Gap) -> u32) {
        self.ids.extend(filled(template, fill));
    }

    /// One of `templates`.
    fn template(&mut self, templates: &'w [Template]) -> &'w Template {
        &templates[self.chance.below(templates.len())]
    }

    fn line(&mut self) {
        if self.facts.len() < OPENING {
            return self.fact();
        }
        match self.chance.below(100) {
            0..19 => self.fact(),
            19..49 => self.code(),
            49..71 => self.guest(),
            71..86 => self.filler(),
            86..88 => {
                let length = 2 + self.chance.below(LONGEST_LINE - 2);
                self.pad(length);
            }
            _ => {
                let topic = [
                    Topic::Third(Third::Window),
                    Topic::Third(Third::History),
                    Topic::Third(Third::Across),
                    Topic::Guest,
                ][self.chance.below(4)];
                match self.question(topic, Candidates::All) {
                    None => self.filler(),
                    Some((question, answer)) => {
                        self.ids.extend(question);
                        match answer {
                            Answer::One(word) => self.ids.push(word),
                            Answer::Two(words) => self.ids.extend(words),
                        }
                        self.ids.push(self.world.stop);
                    }
                }
            }
        }
    }

    fn filler(&mut self) {
        let world = self.world;
        let template = self.template(&world.filler);
        let (cast, chance) = (&self.cast, &mut self.chance);
        let line = filled(template, |gap| {
            chance.pick(match gap {
                Gap::Name => cast,
                Gap::Thing => &world.things,
                Gap::Verb => &world.verbs,
                Gap::Place => &world.places,
                Gap::Time => &world.times,
                Gap::Weather => &world.weather,
                other => unreachable!("a filler has no gap {other:?}"),
            })
        });
        self.ids.extend(line);
    }

    fn pad(&mut self, length: usize) {
        let words = self.world.pad.iter().cycle().take(length - 1);
        self.ids.extend(words);
        self.ids.push(self.world.stop);
    }

    fn fact(&mut self) {
        let world = self.world;
        let name = self.chance.pick(&self.cast);
        let attribute = self.chance.below(world.attributes.len());
        if self.has_fact(name, attribute) {
            return self.filler();
        }
        let adjective = self.chance.pick(&world.adjectives);
        let noun = self.chance.pick(&world.nouns[attribute]);
        let template = self.template(&world.fact);
        self.say(template, |gap| match gap {
            Gap::Name => name,
            Gap::Attribute => world.attributes[attribute],
            Gap::Adjective => adjective,
            Gap::Noun => noun,
            other => unreachable!("a fact has no gap {other:?}"),
        });
        let value = [adjective, noun];
        self.facts.push(Fact { name, attribute, value, end: self.ids.len(), asked: false });
    }

    fn code(&mut self) {
        let (world, here) = (self.world, self.ids.len());
        let codes = &self.codes;
        let free = |name: &u32| codes.get(name).is_none_or(|code| code.end + GAP <= here);
        let free: Vec<u32> = self.cast[..WATCHERS].iter().copied().filter(free).collect();
        if free.is_empty() {
            return self.filler();
        }
        let name = self.chance.pick(&free);
        let mut first = self.chance.pick(&world.first);
        let second = self.chance.pick(&world.second);
        if self.codes.get(&name).is_some_and(|code| code.words[0] == first) {
            let at = world.first.iter().position(|&word| word == first);
            first = world.first[(at.expect("a first word") + 1) % world.first.len()];
        }
        let template = self.template(&world.log);
        self.say(template, |gap| match gap {
            Gap::Name => name,
            Gap::First => first,
            Gap::Second => second,
            other => unreachable!("a code line has no gap {other:?}"),
        });
        let code = Code { words: [first, second], end: self.ids.len(), asked: false };
        self.codes.insert(name, code);
    }

    fn guest(&mut self) {
        let (world, here) = (self.world, self.ids.len());
        let settled = |guest: &Guest| guest.end + GAP > here;
        let free = |berth: &u32| !self.guests.get(berth).is_some_and(settled);
        let free: Vec<u32> = world.berths.iter().copied().filter(free).collect();
        if free.is_empty() {
            return self.filler();
        }
        let berth = self.chance.pick(&free);
        let mut known = Vec::new();
        for fact in &self.facts {
            if !known.contains(&fact.name) {
                known.push(fact.name);
            }
        }
        let housed = |name: u32| self.guests.values().any(|g| settled(g) && g.name == name);
        let roaming: Vec<u32> = known.iter().copied().filter(|&name| !housed(name)).collect();
        let name = self.chance.pick(if roaming.is_empty() { &known } else { &roaming });
        // Drawn whether or not a template names it.
        let time = self.chance.pick(&world.times);
        let template = self.template(&world.berth);
        self.say(template, |gap| match gap {
            Gap::Berth => berth,
            Gap::Name => name,
            Gap::Time => time,
            other => unreachable!("a berth line has no gap {other:?}"),
        });
        self.guests.insert(berth, Guest { name, end: self.ids.len() });
    }

    fn has_fact(&self, name: u32, attribute: usize) -> bool {
        self.facts.iter().any(|fact| fact.name == name && fact.attribute == attribute)
    }

    /// Facts that lie in the history, by index; of one name alone if it is given.
    fn old(&self, name: Option<u32>, which: Candidates) -> Vec<usize> {
        let here = self.ids.len();
        let fits = |fact: &Fact| {
            fact.end + FAR <= here
                && !(which == Candidates::Fresh && fact.asked)
                && name.is_none_or(|name| fact.name == name)
        };
        (0..self.facts.len()).filter(|&index| fits(&self.facts[index])).collect()
    }

    /// Berths that were settled in the window, with their guests.
    fn recent(&self) -> Vec<(u32, u32)> {
        let here = self.ids.len();
        let recent = |berth: &u32| self.guests.get(berth).filter(|guest| guest.end + NEAR >= here);
        let berths = self.world.berths.iter();
        berths.filter_map(|berth| recent(berth).map(|guest| (*berth, guest.name))).collect()
    }

    fn question(&mut self, topic: Topic, which: Candidates) -> Option<(Vec<u32>, Answer)> {
        match topic {
            Topic::Third(Third::Window) => self.ask_window(which),
            Topic::Third(Third::History) => {
                let known = self.old(None, which);
                let index = self.choose(&known)?;
                let name = self.facts[index].name;
                Some(self.ask_fact(index, &self.world.ask_history, Gap::Name, name))
            }
            Topic::Third(Third::Across) => {
                let near = self.recent();
                let answerable = |&(_, name): &(u32, u32)| !self.old(Some(name), which).is_empty();
                let near: Vec<_> = near.into_iter().filter(answerable).collect();
                let (berth, name) = self.choose(&near)?;
                let index = self.contested(berth, name, which);
                Some(self.ask_fact(index, &self.world.ask_across, Gap::Berth, berth))
            }
            Topic::Guest => {
                let near = self.recent();
                let (berth, name) = self.choose(&near)?;
                let ids = filled(&self.world.ask_guest, |_| berth).collect();
                Some((ids, Answer::One(name)))
            }
        }
    }

    fn choose<T: Copy>(&mut self, candidates: &[T]) -> Option<T> {
        (!candidates.is_empty()).then(|| self.chance.pick(candidates))
    }

    fn ask_window(&mut self, which: Candidates) -> Option<(Vec<u32>, Answer)> {
        let here = self.ids.len();
        let fits =
            |code: &Code| code.end + NEAR >= here && !(which == Candidates::Fresh && code.asked);
        let near = |name: &u32| self.codes.get(name).is_some_and(fits);
        let near: Vec<u32> = self.cast[..WATCHERS].iter().copied().filter(near).collect();
        let name = self.choose(&near)?;
        let code = self.codes.get_mut(&name).expect("the name has logged a code");
        code.asked = true;
        Some((filled(&self.world.ask_window, |_| name).collect(), Answer::Two(code.words)))
    }

    /// An old fact of a berth's guest; if possible one whose attribute another guest in the window has, too.
    fn contested(&mut self, berth: u32, name: u32, which: Candidates) -> usize {
        let known = self.old(Some(name), which);
        let others = self.recent().into_iter().filter(|&(other, _)| other != berth);
        let others: Vec<u32> = others.map(|(_, guest)| guest).filter(|&g| g != name).collect();
        let shared = |&index: &usize| {
            let attribute = self.facts[index].attribute;
            others.iter().any(|&other| self.has_fact(other, attribute))
        };
        let contested: Vec<usize> = known.iter().copied().filter(shared).collect();
        self.chance.pick(if contested.is_empty() { &known } else { &contested })
    }

    fn ask_fact(
        &mut self,
        index: usize,
        template: &Template,
        gap: Gap,
        word: u32,
    ) -> (Vec<u32>, Answer) {
        let fact = &mut self.facts[index];
        fact.asked = true;
        let attribute = self.world.attributes[fact.attribute];
        let ids = filled(template, |one| if one == gap { word } else { attribute }).collect();
        (ids, Answer::Two(fact.value))
    }
}

fn filled(template: &Template, mut fill: impl FnMut(Gap) -> u32) -> impl Iterator<Item = u32> {
    template.iter().map(move |word| match *word {
        Word::Token(id) => id,
        Word::Gap(gap) => fill(gap),
    })
}

/// Evaluation prompt number `index`, of third `index` mod 3, or `None` where its text has no candidate for one.
/// The numbers and digests of those that the card's figures are of stand in `prompts.jsonl`.
pub fn evaluation_prompt(world: &World, index: u64) -> Option<EvaluationPrompt> {
    let seed = EVALUATION_SEED + index;
    let boundary = SplitMix64::new(!seed).pick(&EVALUATION_BOUNDARIES);
    let mut book = Logbook::new(world, seed);
    book.grow(boundary);
    let question = book.ask(Third::ALL[(index % 3) as usize])?;
    let mut ids = book.ids;
    ids.extend(&question.ids);
    Some(EvaluationPrompt { boundary, ids, question })
}
