//! The tree and the directory in lockstep with naive twins that keep lists and look everything up anew.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use statepages_page::{CheckpointId, ContentKey, PageId, Pages};

use super::ages::{Ages, EPOCHS_PER_POOL, LAST, STARTS, Trial};
use super::directory::{Directory, EntryIndex, Resident};
use super::ranks::{Bargain, Cell};
use super::tree::{Bundle, Tree};
use crate::placement::KeepReason;

const PAGES: u32 = 24;

#[derive(Clone, Copy, Debug)]
enum Act {
    Found { page: u8, parent: u8 },
    Moved { from: u8, to: u8 },
    Lost { page: u8 },
    Cached { page: u8 },
    Uncached { page: u8 },
    Cover { page: u8 },
    Uncover { page: u8 },
    Clear,
}

fn act() -> impl Strategy<Value = Act> {
    let page = || 0..PAGES as u8;
    prop_oneof![
        8 => (page(), page()).prop_map(|(page, parent)| Act::Found { page, parent }),
        2 => (page(), page()).prop_map(|(from, to)| Act::Moved { from, to }),
        2 => page().prop_map(|page| Act::Lost { page }),
        6 => page().prop_map(|page| Act::Cached { page }),
        3 => page().prop_map(|page| Act::Uncached { page }),
        6 => page().prop_map(|page| Act::Cover { page }),
        3 => page().prop_map(|page| Act::Uncover { page }),
        1 => Just(Act::Clear),
    ]
}

/// A block of the naive tree. Blocks are never reused, so a parent that was lost is simply absent.
#[derive(Clone, Debug)]
struct Block {
    page: u8,
    parent: Option<u32>,
    depth: u32,
    image: Option<EntryIndex>,
}

#[derive(Debug, Default)]
struct Naive {
    blocks: BTreeMap<u32, Block>,
    next: u32,
    cached: BTreeSet<u8>,
    loose: Vec<u8>,
}

impl Naive {
    fn at(&self, page: u8) -> Option<u32> {
        self.blocks.iter().find(|(_, block)| block.page == page).map(|(&id, _)| id)
    }

    fn chain(&self, from: u32) -> impl Iterator<Item = u32> {
        let parent =
            |id: &u32| self.blocks[id].parent.filter(|parent| self.blocks.contains_key(parent));
        std::iter::successors(Some(from), parent)
    }

    /// Images that need a block.
    fn above(&self, id: u32) -> Vec<EntryIndex> {
        let needs = |&(&from, block): &(&u32, &Block)| {
            block.image.is_some() && self.chain(from).any(|at| at == id)
        };
        self.blocks.iter().filter(needs).filter_map(|(_, block)| block.image).collect()
    }

    /// What an image on a block saves and holds alone.
    fn bundle(&self, id: u32) -> Bundle {
        let own: Vec<EntryIndex> = self.blocks[&id].image.into_iter().collect();
        let alone = self.chain(id).take_while(|&at| self.above(at) == own).count();
        let before = self.chain(id).skip(1).find(|at| self.blocks[at].image.is_some());
        let until = before.map_or(0, |at| self.blocks[&at].depth);
        Bundle {
            saves: Pages::new(self.blocks[&id].depth - until),
            alone: Pages::new(alone as u32),
        }
    }

    /// Puts the order of loose pages right; `order` has those that may have become loose, in order.
    fn settle(&mut self, order: &[u8]) {
        let is_loose = |page: &u8| {
            self.cached.contains(page) && self.at(*page).is_some_and(|id| self.above(id).is_empty())
        };
        let mut loose: Vec<u8> = self.loose.iter().copied().filter(is_loose).collect();
        for page in order.iter().copied().filter(is_loose) {
            if !loose.contains(&page) {
                loose.push(page);
            }
        }
        self.loose = loose;
    }

    fn holders(&self) -> BTreeMap<EntryIndex, u32> {
        let images = self.blocks.iter().filter_map(|(&id, block)| Some((block.image?, id)));
        images.map(|(image, id)| (image, self.bundle(id).alone.get())).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_tree_agrees_with_a_naive_one(acts in prop::collection::vec(act(), 1..120)) {
        let (mut tree, mut naive) = (Tree::new(Pages::new(PAGES)), Naive::default());
        let page = |raw: u8| PageId::new(u32::from(raw));
        for (step, act) in (0u32..).zip(acts) {
            let before = naive.holders();
            let mut touched = None;
            match act {
                Act::Found { page: at, parent } if naive.at(at).is_none() => {
                    // A block that is its own parent's place has no parent.
                    let above = naive.at(parent);
                    let depth = above.map_or(1, |id| naive.blocks[&id].depth + 1);
                    let parent_page = above.map(|_| page(parent));
                    tree.found(page(at), parent_page, Pages::new(depth));
                    naive.next += 1;
                    let block = Block { page: at, parent: above, depth, image: None };
                    naive.blocks.insert(naive.next, block);
                }
                Act::Moved { from, to } if naive.at(from).is_some() && naive.at(to).is_none() => {
                    tree.moved(page(from), page(to));
                    let id = naive.at(from).unwrap();
                    naive.blocks.get_mut(&id).unwrap().page = to;
                    naive.cached.remove(&from);
                    naive.settle(&[]);
                }
                Act::Lost { page: at } => {
                    let Some(id) = naive.at(at) else { continue };
                    let order: Vec<u8> = naive.chain(id).map(|at| naive.blocks[&at].page).collect();
                    if naive.blocks[&id].image.is_some() {
                        tree.uncover(tree.node(page(at)).unwrap());
                        naive.blocks.get_mut(&id).unwrap().image = None;
                        naive.settle(&order);
                    }
                    if naive.cached.remove(&at) {
                        tree.uncached(page(at));
                    }
                    tree.lost(page(at));
                    naive.blocks.remove(&id);
                    naive.settle(&order);
                }
                Act::Cached { page: at }
                    if naive.at(at).is_some() && !naive.cached.contains(&at) =>
                {
                    naive.cached.insert(at);
                    tree.cached(page(at));
                    naive.settle(&[at]);
                }
                Act::Uncached { page: at } if naive.cached.contains(&at) => {
                    naive.cached.remove(&at);
                    tree.uncached(page(at));
                    naive.settle(&[]);
                }
                Act::Cover { page: at } => {
                    let Some(id) = naive.at(at) else { continue };
                    if naive.blocks[&id].image.is_some() {
                        continue;
                    }
                    let node = tree.node(page(at)).unwrap();
                    prop_assert_eq!(tree.bundle(node), naive.bundle(id), "a prospect");
                    touched = Some((step, tree.cover(node, step)));
                    naive.blocks.get_mut(&id).unwrap().image = Some(step);
                    naive.settle(&[]);
                }
                Act::Uncover { page: at } => {
                    let Some(id) = naive.at(at) else { continue };
                    let Some(image) = naive.blocks[&id].image else { continue };
                    touched = Some((image, tree.uncover(tree.node(page(at)).unwrap())));
                    let order: Vec<u8> = naive.chain(id).map(|at| naive.blocks[&at].page).collect();
                    naive.blocks.get_mut(&id).unwrap().image = None;
                    naive.settle(&order);
                }
                Act::Clear => {
                    for at in 0..PAGES as u8 {
                        if let Some(id) = naive.at(at)
                            && naive.blocks[&id].image.is_some()
                        {
                            tree.uncover(tree.node(page(at)).unwrap());
                        }
                    }
                    for &at in &naive.cached {
                        tree.uncached(page(at));
                    }
                    tree.clear();
                    naive = Naive { next: naive.next, ..Naive::default() };
                }
                _ => {}
            }
            tree.check();
            let loose = tree.loose_pages();
            let loose: Vec<u8> = loose.map(|at| at.raw() as u8).collect();
            prop_assert_eq!(&loose, &naive.loose, "{:?}", act);
            for (&id, block) in &naive.blocks {
                let node = tree.node(page(block.page)).unwrap();
                prop_assert_eq!(tree.bundle(node), naive.bundle(id), "{:?} after {:?}", block, act);
            }
            if let Some((own, answer)) = touched {
                // Exactly the image that is answered may hold another number of blocks alone.
                for (image, alone) in naive.holders() {
                    let was = before.get(&image).copied();
                    let same = image == own || was == Some(alone) || answer == Some(image);
                    prop_assert!(same, "{image} holds {was:?} -> {alone}, answered {answer:?}");
                }
            }
        }
    }
}

/// Something that happens to a directory.
#[derive(Clone, Copy, Debug)]
enum Event {
    Want { key: u8, reason: u8 },
    Read { key: u8 },
    Pass { key: u8 },
    Settle { key: u8, bargain: u8 },
    Vanish { key: u8 },
    Pin { key: u8 },
    Unpin { key: u8 },
    Advance { epochs: u8 },
}

fn event() -> impl Strategy<Value = Event> {
    let key = || 0..16u8;
    prop_oneof![
        3 => (key(), 0..5u8).prop_map(|(key, reason)| Event::Want { key, reason }),
        4 => key().prop_map(|key| Event::Read { key }),
        1 => key().prop_map(|key| Event::Pass { key }),
        4 => (key(), 1..60u8).prop_map(|(key, bargain)| Event::Settle { key, bargain }),
        2 => key().prop_map(|key| Event::Vanish { key }),
        1 => key().prop_map(|key| Event::Pin { key }),
        1 => key().prop_map(|key| Event::Unpin { key }),
        6 => (0..40u8).prop_map(|epochs| Event::Advance { epochs }),
    ]
}

/// An image as the naive directory remembers it.
#[derive(Clone, Copy, Debug)]
struct Note {
    reason: usize,
    passed: bool,
    reads: usize,
    age: u32,
    resident: Option<(Bargain, u32)>,
}

impl Note {
    fn class(&self) -> usize {
        let reads = [0, 1, 2, 2, 3][self.reads.min(4)];
        (self.reason * 2 + usize::from(self.passed)) * 4 + reads
    }

    fn span(&self) -> usize {
        (0..=LAST).rev().find(|&span| STARTS[span] <= self.age).unwrap()
    }
}

const REASONS: [KeepReason; 5] = [
    KeepReason::Grid,
    KeepReason::Demand,
    KeepReason::Anchor,
    KeepReason::PromptEnd,
    KeepReason::DecodeSpacing,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_cheapest_image_is_the_cheapest_of_all(
        events in prop::collection::vec(event(), 1..200),
    ) {
        let mut directory = Directory::new(Pages::new(100), 2);
        let (mut notes, mut ages) = (BTreeMap::<u8, Note>::new(), Ages::new(40, 4));
        let key = |raw: u8| ContentKey::from_raw(u128::from(raw) + 1);
        for event in events {
            match event {
                Event::Want { key: at, reason } if !notes.contains_key(&at) => {
                    let reason = usize::from(reason);
                    directory.want(key(at), REASONS[reason]);
                    let note = Note { reason, passed: false, reads: 0, age: 0, resident: None };
                    notes.insert(at, note);
                }
                Event::Read { key: at } => {
                    let Some(note) = notes.get_mut(&at) else { continue };
                    ages.count(note.class(), note.span(), Trial::Asked);
                    (note.age, note.reads) = (0, note.reads + 1);
                    directory.read(directory.find(key(at)).unwrap());
                }
                Event::Pass { key: at } => {
                    let Some(note) = notes.get_mut(&at) else { continue };
                    note.passed = true;
                    directory.pass(directory.find(key(at)).unwrap());
                }
                Event::Settle { key: at, bargain } => {
                    let Some(note) = notes.get_mut(&at) else { continue };
                    if note.resident.is_some() {
                        continue;
                    }
                    let blocks = Pages::new(u32::from(bargain));
                    let bargain = Bargain::of(Bundle { saves: blocks, alone: Pages::new(0) }, 2);
                    note.resident = Some((bargain, 0));
                    let checkpoint = CheckpointId::new(u64::from(at));
                    let resident = Resident { checkpoint, node: 0, pins: 0, bargain };
                    directory.settle(directory.find(key(at)).unwrap(), resident);
                }
                Event::Vanish { key: at } => {
                    let Some(note) = notes.get_mut(&at) else { continue };
                    if note.resident.take().is_some() {
                        directory.vanish(directory.find(key(at)).unwrap());
                    }
                }
                Event::Pin { key: at } => {
                    let Some(Note { resident: Some((_, pins)), .. }) = notes.get_mut(&at) else {
                        continue;
                    };
                    *pins += 1;
                    directory.update(directory.find(key(at)).unwrap(), |r| r.pins += 1);
                }
                Event::Unpin { key: at } => {
                    let Some(Note { resident: Some((_, pins @ 1..)), .. }) = notes.get_mut(&at)
                    else {
                        continue;
                    };
                    *pins -= 1;
                    directory.update(directory.find(key(at)).unwrap(), |r| r.pins -= 1);
                }
                Event::Advance { epochs } => {
                    for _ in 0..epochs {
                        directory.advance();
                        for note in notes.values_mut() {
                            let span = note.span();
                            note.age += 1;
                            let over = note.age == STARTS[LAST] + EPOCHS_PER_POOL;
                            if over || note.span() != span {
                                ages.count(note.class(), span, Trial::Unasked);
                            }
                            note.age = if over { STARTS[LAST] } else { note.age };
                        }
                    }
                }
                Event::Want { .. } => {}
            }
            directory.check();
            ages.refresh();
            let level = |note: &Note| {
                let (bargain, 0) = note.resident? else { return None };
                Some(Cell { class: note.class(), span: note.span(), bargain }.level(&ages))
            };
            let expected = notes.values().filter_map(level).min();
            let got = directory.cheapest();
            prop_assert_eq!(got.map(|(_, level)| level), expected, "{:?}", event);
            if let Some((entry, least)) = got {
                let resident = directory.resident(entry).expect("what is ranked is resident");
                let note = &notes[&(resident.checkpoint.raw() as u8)];
                prop_assert_eq!(level(note), Some(least));
            }
        }
    }
}

#[test]
fn ghosts_are_bounded_and_reach_two_pools_of_bundles_back() {
    let (pages, units) = (1000, 4);
    let mut directory = Directory::new(Pages::new(pages), units);
    let bytes = directory.bytes();
    let key = |n: u32| ContentKey::from_raw(u128::from(n) + 1);
    // The smallest bundle is an image and one block.
    let ghosts = 2 * pages / (units + 1);
    for n in 0..10 * pages {
        directory.want(key(n), KeepReason::Anchor);
        assert!(directory.find(key(n.saturating_sub(ghosts - 1))).is_some());
    }
    assert!(directory.find(key(0)).is_none());
    assert_eq!(directory.bytes(), bytes, "nothing has grown");
    directory.check();
}
