//! Every image that is there, was there or was wanted: its class, its age, its rank.
//!
//! ```text
//!   (absent) --want--> ghost <--settle / vanish--> resident --pin--> pinned
//!      ^                 |                            ^                |
//!      +-- the oldest ---+                            +----- unpin ----+
//! ```
//!
//! Invariants:
//! - a key has one entry at most; there are entries for as many images as the pool can hold and for
//!   as many ghosts as two pools of bundles have images, so a ghost is forgotten at the earliest
//!   when two pools of other bundles have followed it;
//! - an entry's age is counted from when it was last asked for, whether or not its image was there;
//!   it passes through the spans one by one, and each span that ends is one trial of its class; in the
//!   last span it is held to begin anew when the span's width is over;
//! - exactly the resident entries without a pin are ranked.

use statepages_page::{CheckpointId, ContentKey, Pages};

use crate::key_table::KeyTable;
use crate::order::Order;
use crate::placement::KeepReason;
use crate::value::ages::{Ages, EPOCHS_PER_POOL, LAST, STARTS, Trial};
use crate::value::ranks::{Bargain, Cell, Level, Ranks};
use crate::value::rings::Rings;
use crate::value::tree::NodeIndex;

/// Index of an entry, valid until it is forgotten.
pub(crate) type EntryIndex = u32;

/// Reads that are told apart: none, one, two or three, more.
const READ_CLASSES: usize = 4;

const REASONS: usize = 5;

/// A class is a reason, whether a later image lies on the same path, and how often it was read.
const CLASSES: usize = REASONS * 2 * READ_CLASSES;

/// The age at which an entry begins the last span anew.
const AGE_MAX: u32 = STARTS[LAST] + EPOCHS_PER_POOL;

/// Slots of the wheel: one for each age, in epochs.
const WHEEL: u32 = AGE_MAX + 1;

/// The directory.
#[derive(Debug)]
pub(crate) struct Directory {
    entries: Vec<Entry>,
    absent: Vec<EntryIndex>,
    keys: KeyTable,
    /// All entries, by the epoch of their last use.
    wheel: Rings,
    /// Ghosts, the one that became one or was asked for longest ago ahead.
    ghosts: Order,
    ranks: Ranks,
    ages: Ages,
    now: u64,
    figures: Figures,
}

/// Whether the ranks follow from the trials counted so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figures {
    Current,
    Stale,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: ContentKey,
    /// Epoch of the last use, or the one that makes its age lie in the last span.
    used: u64,
    span: usize,
    reason: KeepReason,
    standing: Standing,
    reads: u32,
    life: Life,
}

/// Where on its path an image lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing later is known.
    Tip,
    /// A later image was wanted on a path through it: what continues goes on from there.
    Passed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Absent,
    Ghost,
    Resident(Resident),
}

/// An image in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) checkpoint: CheckpointId,
    pub(crate) node: NodeIndex,
    pub(crate) pins: u32,
    pub(crate) bargain: Bargain,
}

impl Directory {
    pub(crate) fn new(pages_max: Pages, units: u32) -> Self {
        let residents = pages_max.get() / units;
        let ghosts = (2 * pages_max.get()).div_ceil(units + 1);
        let capacity = residents + ghosts.max(1);
        let blank = Entry {
            key: ContentKey::from_raw(0),
            used: 0,
            span: 0,
            reason: KeepReason::Anchor,
            standing: Standing::Tip,
            reads: 0,
            life: Life::Absent,
        };
        let ages = Ages::new(CLASSES, READ_CLASSES);
        Self {
            entries: vec![blank; capacity as usize],
            absent: (0..capacity).rev().collect(),
            keys: KeyTable::new(capacity),
            wheel: Rings::new(capacity, WHEEL),
            ghosts: Order::new(capacity),
            ranks: Ranks::new(capacity, CLASSES),
            ages,
            now: 0,
            figures: Figures::Current,
        }
    }

    /// Bytes held, used or not.
    pub(crate) fn bytes(&self) -> u64 {
        let own = size_of_val(&*self.entries) + self.entries.len() * size_of::<EntryIndex>();
        let lists = self.keys.bytes() + self.wheel.bytes() + self.ghosts.bytes();
        own as u64 + lists + self.ranks.bytes() + self.ages.bytes()
    }

    pub(crate) fn find(&self, key: ContentKey) -> Option<EntryIndex> {
        self.keys.get(key.raw())
    }

    pub(crate) fn reason(&self, entry: EntryIndex) -> KeepReason {
        self.entries[entry as usize].reason
    }

    /// The entry's image, where it is there.
    pub(crate) fn resident(&self, entry: EntryIndex) -> Option<Resident> {
        match self.entries[entry as usize].life {
            Life::Resident(resident) => Some(resident),
            Life::Ghost => None,
            Life::Absent => panic!("entry {entry} is absent"),
        }
    }

    /// Adds a ghost for a key that has no entry.
    pub(crate) fn want(&mut self, key: ContentKey, reason: KeepReason) -> EntryIndex {
        let index = self.absent.pop().unwrap_or_else(|| self.forget());
        self.entries[index as usize] = Entry {
            key,
            used: self.now,
            span: 0,
            reason,
            standing: Standing::Tip,
            reads: 0,
            life: Life::Ghost,
        };
        self.keys.insert(key.raw(), index);
        self.wheel.push_back(slot(self.now), index);
        self.ghosts.push_back(index);
        index
    }

    /// Somebody asked for the image, whether or not it was there.
    pub(crate) fn read(&mut self, entry: EntryIndex) {
        let Entry { span, .. } = self.entries[entry as usize];
        let class = self.class(entry);
        self.ages.count(class, span, Trial::Asked);
        self.figures = Figures::Stale;
        self.unrank(entry);
        self.wheel.remove(entry);
        let at = &mut self.entries[entry as usize];
        (at.used, at.span) = (self.now, 0);
        at.reads = at.reads.saturating_add(1);
        if at.life == Life::Ghost {
            self.ghosts.remove(entry);
            self.ghosts.push_back(entry);
        }
        self.wheel.push_back(slot(self.now), entry);
        self.rank(entry);
    }

    /// A later image was wanted on a path through the entry's.
    pub(crate) fn pass(&mut self, entry: EntryIndex) {
        self.unrank(entry);
        self.entries[entry as usize].standing = Standing::Passed;
        self.rank(entry);
    }

    /// A ghost's image is READY.
    pub(crate) fn settle(&mut self, entry: EntryIndex, resident: Resident) {
        let at = &mut self.entries[entry as usize];
        assert_eq!(at.life, Life::Ghost, "one image of a key");
        at.life = Life::Resident(resident);
        self.ghosts.remove(entry);
        self.rank(entry);
    }

    /// The entry's image is gone.
    pub(crate) fn vanish(&mut self, entry: EntryIndex) {
        self.unrank(entry);
        self.entries[entry as usize].life = Life::Ghost;
        self.ghosts.push_back(entry);
    }

    /// Changes a resident's pins or bargain.
    pub(crate) fn update(&mut self, entry: EntryIndex, change: impl FnOnce(&mut Resident)) {
        self.unrank(entry);
        let Life::Resident(resident) = &mut self.entries[entry as usize].life else {
            panic!("entry {entry} is not resident");
        };
        change(resident);
        self.rank(entry);
    }

    /// One epoch ends.
    pub(crate) fn advance(&mut self) {
        self.now += 1;
        self.figures = Figures::Stale;
        for (span, start) in STARTS.iter().enumerate().skip(1) {
            let Some(used) = self.now.checked_sub(u64::from(*start)) else { return };
            let mut at = self.wheel.first(slot(used));
            while let Some(entry) = at {
                at = self.wheel.after(entry);
                let class = self.class(entry);
                self.ages.count(class, span - 1, Trial::Unasked);
                self.unrank(entry);
                self.entries[entry as usize].span = span;
                self.rank(entry);
            }
        }
        let Some(used) = self.now.checked_sub(u64::from(AGE_MAX)) else { return };
        while let Some(entry) = self.wheel.first(slot(used)) {
            let class = self.class(entry);
            self.ages.count(class, LAST, Trial::Unasked);
            self.wheel.remove(entry);
            let anew = used + u64::from(EPOCHS_PER_POOL);
            self.entries[entry as usize].used = anew;
            self.wheel.push_back(slot(anew), entry);
        }
    }

    /// The cheapest image that may be given up, and how cheap.
    pub(crate) fn cheapest(&mut self) -> Option<(EntryIndex, Level)> {
        self.refresh();
        self.ranks.cheapest()
    }

    /// What the image of a ghost would be worth.
    pub(crate) fn level(&mut self, entry: EntryIndex, bargain: Bargain) -> Level {
        self.refresh();
        let span = self.entries[entry as usize].span;
        Cell { class: self.class(entry), span, bargain }.level(&self.ages)
    }

    /// Audits lists, keys and ranks in O(n).
    pub(crate) fn check(&self) {
        let (mut ghosts, mut known, mut ranked) = (0, 0, 0);
        for (index, entry) in (0u32..).zip(&self.entries) {
            match entry.life {
                Life::Absent => continue,
                Life::Ghost => ghosts += 1,
                Life::Resident(resident) => ranked += u32::from(resident.pins == 0),
            }
            known += 1;
            assert_eq!(self.find(entry.key), Some(index), "entry {index} is found");
            let age = self.now - entry.used;
            assert!(age <= u64::from(AGE_MAX), "age of entry {index}");
            let span = STARTS.partition_point(|&start| u64::from(start) <= age) - 1;
            assert_eq!(entry.span, span, "span of entry {index}, {age} epochs old");
        }
        assert_eq!(ghosts, self.ghosts.len(), "ghosts");
        assert_eq!(known, self.keys.len(), "keys");
        assert_eq!(known as usize + self.absent.len(), self.entries.len(), "entries");
        assert_eq!(ranked, self.ranks.count(), "exactly what may be given up is ranked");
    }

    fn refresh(&mut self) {
        if self.figures == Figures::Stale {
            self.ages.refresh();
            self.ranks.refresh(&self.ages);
            self.figures = Figures::Current;
        }
    }

    /// Gives up the ghost that has been one for longest.
    fn forget(&mut self) -> EntryIndex {
        let index = self.ghosts.first().expect("there are more entries than images");
        self.ghosts.remove(index);
        self.keys.remove(index);
        self.wheel.remove(index);
        index
    }

    fn class(&self, entry: EntryIndex) -> usize {
        let Entry { reason, standing, reads, .. } = self.entries[entry as usize];
        let reads = match reads {
            0 | 1 => reads as usize,
            2 | 3 => 2,
            _ => 3,
        };
        (reason as usize * 2 + standing as usize) * READ_CLASSES + reads
    }

    /// Where a resident entry without pins is ranked; `None` for all others.
    fn cell(&self, entry: EntryIndex) -> Option<Cell> {
        let Entry { span, life, .. } = self.entries[entry as usize];
        let Life::Resident(Resident { pins: 0, bargain, .. }) = life else { return None };
        Some(Cell { class: self.class(entry), span, bargain })
    }

    fn rank(&mut self, entry: EntryIndex) {
        if let Some(cell) = self.cell(entry) {
            self.ranks.enter(entry, cell, &self.ages);
        }
    }

    fn unrank(&mut self, entry: EntryIndex) {
        if let Some(cell) = self.cell(entry) {
            self.ranks.leave(entry, cell);
        }
    }
}

/// The wheel's slot of an epoch.
#[expect(clippy::cast_possible_truncation, reason = "the remainder is below WHEEL")]
const fn slot(epoch: u64) -> u32 {
    (epoch % WHEEL as u64) as u32
}
