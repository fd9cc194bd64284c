//! Logbooks with questions, for a model that was trained to answer them. All that an answer needs stands
//! before the boundary that its prompt resumes from, and the question behind it: only a resumer with the right
//! state can know what stands in the window.

use anyhow::{Context as _, Result};
use statepages_mini::{Logbook, Question, Third, World};

use crate::demo::workload::{Asked, Kind, Prompt, Rules, Workload, blocks};

/// Blocks of the prefix that the prompts of one shared-prefix group have in common.
const SHARED_BLOCKS: usize = 9;
/// Texts that are tried until one has every question that its request asks.
const TRIES: u64 = 1 << 12;
/// Seeds of the texts: neither training nor the evaluation prompts take these.
const SEED: u64 = 0xDE30 << 48;
const FRESH_SEED: u64 = 0xDE31 << 48;

/// One request: what it sends first, and again.
struct Item {
    first: Prompt,
    again: Again,
}

enum Again {
    Identical,
    /// The new turn, behind the answer.
    Continued {
        turn: Vec<u32>,
        asked: Asked,
    },
    /// The second sight of the prefix and the third.
    Shared {
        second: Vec<u32>,
        second_asked: Asked,
        third: Vec<u32>,
        third_asked: Asked,
    },
}

/// Prompts that end in questions. A request asks for the same third in all rounds.
pub(crate) struct Questions {
    rules: Rules,
    stop: u32,
    items: Vec<Item>,
    fresh: Vec<Prompt>,
}

impl Questions {
    /// `requests` prompts, a multiple of 3, and `fresh` others.
    pub(crate) fn new(world: &World, requests: usize, fresh: usize, rules: Rules) -> Result<Self> {
        let items: Option<Vec<Item>> =
            (0..requests).map(|index| found(world, SEED, index, rules, item)).collect();
        let fresh: Option<Vec<Item>> = (0..fresh.min(requests))
            .map(|index| {
                found(world, FRESH_SEED, index, rules, |book, index, rules| {
                    let (first, _) = alone(book, Kind::ALL[index % 3], index, rules)?;
                    Some(Item { first, again: Again::Identical })
                })
            })
            .collect();
        let without = "world.json: expected texts in which every question has an answer, got none";
        let fresh = fresh.context(without)?.into_iter().map(|item| item.first).collect();
        Ok(Self { rules, stop: world.stop(), items: items.context(without)?, fresh })
    }

    /// The answer that an output gives, without what the model went on to write.
    fn sentence<'a>(&self, output: &'a [u32]) -> &'a [u32] {
        let end = output.iter().position(|&id| id == self.stop);
        &output[..end.map_or(output.len(), |end| end + 1)]
    }
}

/// The first of the texts of request `index` that has what `make` looks for.
fn found(
    world: &World,
    seed: u64,
    index: usize,
    rules: Rules,
    make: impl Fn(Logbook<'_>, usize, Rules) -> Option<Item>,
) -> Option<Item> {
    let seed = seed + ((index as u64) << 16);
    (0..TRIES).find_map(|attempt| make(Logbook::new(world, seed + attempt), index, rules))
}

/// Three requests in a row ask for all thirds, and nine for each in each kind.
fn third(index: usize) -> Third {
    Third::ALL[(index / 3 + index) % 3]
}

fn asked(question: &Question) -> Asked {
    Asked { third: question.third, answer: question.answer }
}

fn joined(text: &[u32], question: &Question) -> Vec<u32> {
    [text, &question.ids].concat()
}

/// A text of whole blocks with a question behind it, and the text behind which the right answer stands.
fn alone(
    mut book: Logbook<'_>,
    kind: Kind,
    index: usize,
    rules: Rules,
) -> Option<(Prompt, Logbook<'_>)> {
    book.grow(blocks(index) * rules.block);
    let question = book.ask(third(index))?;
    let ids = joined(book.ids(), &question);
    let prompt = Prompt { kind, ids, resumable: Some(0), asked: Some(asked(&question)) };
    book.exchange(&question);
    Some((prompt, book))
}

fn item(mut book: Logbook<'_>, index: usize, rules: Rules) -> Option<Item> {
    let kind = Kind::ALL[index % 3];
    match kind {
        Kind::Identical => {
            let (first, _) = alone(book, kind, index, rules)?;
            Some(Item { first, again: Again::Identical })
        }
        Kind::Continued => {
            let (first, mut book) = alone(book, kind, index, rules)?;
            let question = book.ask(third(index))?;
            let again = Again::Continued { asked: asked(&question), turn: question.ids };
            Some(Item { first, again })
        }
        Kind::Shared => {
            book.grow(SHARED_BLOCKS * rules.block);
            let (first, _) = alone(book.clone(), kind, index, rules)?;
            let (second, last) = (book.ask(third(index))?, book.ask(third(index))?);
            let again = Again::Shared {
                second: joined(book.ids(), &second),
                second_asked: asked(&second),
                third: joined(book.ids(), &last),
                third_asked: asked(&last),
            };
            Some(Item { first, again })
        }
    }
}

impl Workload for Questions {
    fn rules(&self) -> Rules {
        self.rules
    }

    fn cold(&self) -> Vec<Prompt> {
        self.items.iter().map(|item| item.first.clone()).collect()
    }

    fn second_sight(&self) -> Vec<Prompt> {
        let resumable = Some(self.rules.grid_floor(SHARED_BLOCKS * self.rules.block));
        let second = self.items.iter().filter_map(|item| match &item.again {
            Again::Shared { second, second_asked, .. } => Some(Prompt {
                kind: Kind::Shared,
                ids: second.clone(),
                resumable,
                asked: Some(*second_asked),
            }),
            Again::Identical | Again::Continued { .. } => None,
        });
        second.collect()
    }

    fn resumed(&self, outputs: &[Vec<u32>]) -> Vec<Prompt> {
        let rules = self.rules;
        let again = |(item, output): (&Item, &Vec<u32>)| match &item.again {
            Again::Identical => Prompt {
                // The last token is always computed, so that there is a token to sample from.
                resumable: Some(rules.floor(item.first.ids.len() - 1)),
                ..item.first.clone()
            },
            Again::Continued { turn, asked } => Prompt {
                kind: Kind::Continued,
                ids: [&item.first.ids, self.sentence(output), turn].concat(),
                resumable: Some(rules.floor(item.first.ids.len())),
                asked: Some(*asked),
            },
            Again::Shared { third, third_asked, .. } => Prompt {
                kind: Kind::Shared,
                ids: third.clone(),
                resumable: Some(rules.allowed(SHARED_BLOCKS * rules.block)),
                asked: Some(*third_asked),
            },
        };
        self.items.iter().zip(outputs).map(again).collect()
    }

    fn fresh(&self, count: usize) -> Vec<Prompt> {
        self.fresh.iter().take(count).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::workload::Grid;
    use crate::tokens::Texts;

    #[test]
    fn what_an_answer_needs_stands_before_the_boundary_that_its_prompt_resumes_from() {
        let world = Texts::built_in().unwrap().world.unwrap();
        let rules = Rules { block: 256, grid: Grid::Every(8_192) };
        let questions = Questions::new(&world, 18, 4, rules).unwrap();
        let cold = questions.cold();
        // The right answer, and what a model might go on to write.
        let outputs: Vec<Vec<u32>> = cold
            .iter()
            .map(|prompt| {
                let [one, two] = prompt.asked.unwrap().answer;
                vec![one, two, world.stop(), 300, world.stop()]
            })
            .collect();
        let again = questions.resumed(&outputs);
        let second = questions.second_sight();
        assert_eq!((cold.len(), second.len(), again.len()), (18, 6, 18));
        for prompt in cold.iter().chain(&questions.fresh(4)) {
            assert!((2_600..=4_800).contains(&prompt.ids.len()), "{}", prompt.ids.len());
        }
        for prompt in &again {
            let (boundary, asked) = (prompt.resumable.unwrap(), prompt.asked.unwrap());
            let behind = prompt.ids.len() - boundary;
            assert!(boundary.is_multiple_of(256) && (10..=40).contains(&behind), "{behind}");
            // A code of the window, or a fact's two words, stand together in the resumed text.
            let mut pairs = prompt.ids[..boundary].windows(2);
            assert!(pairs.any(|pair| pair == asked.answer), "{:?}", asked.third);
        }
        for third in Third::ALL {
            let count = |all: &[Prompt]| {
                all.iter().filter(|prompt| prompt.asked.unwrap().third == third).count()
            };
            assert_eq!((count(&cold), count(&again)), (6, 6));
            for kind in Kind::ALL {
                let of_kind = |p: &&Prompt| p.kind == kind && p.asked.unwrap().third == third;
                assert_eq!(again.iter().filter(of_kind).count(), 2);
            }
        }
        let third_sights: Vec<_> = again.iter().filter(|p| p.kind == Kind::Shared).collect();
        for (second, third) in second.iter().zip(third_sights) {
            assert_eq!(second.ids[..2_304], third.ids[..2_304]);
            assert_ne!(second.ids, third.ids);
        }
    }
}
