//! Slot groups of the classes that do not copy: a checkpoint is a whole group.
//!
//! ```text
//!            take                 hand_over (its owner goes on in a fresh group)
//!   Vacant --------> Owned ------------------------------> Kept(key, pins) <--+
//!    ^ ^ ^             |                                     |    |    |      | resume pins,
//!    | | +-- release --+          evicted by take, unindex,  |    |    +------+ unpin
//!    | +------------------------- clear: pins = 0 -----------+    | unindex, clear: pins > 0
//!    +---------------------------- last unpin --------- Leaving(pins) <--+
//! ```
//!
//! Invariants:
//! - a vacant group is taken lowest id first; when there is none, the kept, unpinned group used
//!   longest ago is given up, and the answer says whose key went;
//! - a handed-over group is read by its former owner for exactly one forward and by each resumer for
//!   one: each holds a [`GroupPin`], and a pinned group is never taken;
//! - a checkpoint is possible only where the next forward has the tokens the class needs; the class
//!   `none` needs more than there can be.
//!
//! Control plane only: no engine drives it. The owner of the pool calls it with `&mut`.

use statepages_page::{ContentKey, SlotId, Tokens};

use crate::id_set::IdSet;
use crate::key_table::KeyTable;
use crate::order::Order;
use crate::runtime::{StateTransfer, SuccessorRoom};

/// Groups and their owners.
#[derive(Debug)]
pub struct GroupPool {
    groups: Vec<Group>,
    vacant: IdSet,
    kept: KeyTable,
    recency: Order,
    room: SuccessorRoom,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Vacant,
    Owned,
    Kept { pins: u32 },
    Leaving { pins: u32 },
}

/// One reader of a handed-over group, for one forward.
#[must_use = "a group pin ends by `GroupPool::unpin`"]
#[derive(Debug)]
pub struct GroupPin {
    group: SlotId,
}

/// A group that was taken, and what that cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenGroup {
    /// The group.
    pub group: SlotId,
    /// Key of the checkpoint that was given up for it.
    pub evicted: Option<ContentKey>,
}

/// The answer to a checkpoint by hand-over.
#[must_use]
#[derive(Debug)]
pub enum HandOver {
    /// The group is findable under its key; its owner goes on in the successor.
    Done {
        /// The group its owner writes from now on.
        successor: TakenGroup,
        /// Its owner's next forward reads the old group; the pin comes back with that batch.
        pin: GroupPin,
    },
    /// The key has a group already; nothing has changed.
    Duplicate,
    /// No group can be had; nothing has changed.
    NoGroup,
    /// The next forward is too short for this class; nothing has changed.
    NoRoomAhead,
}

/// The answer to a resume.
#[must_use]
#[derive(Debug)]
pub enum Resume {
    /// The resumer's first forward reads the pinned group and writes its own.
    Done {
        /// The resumer's group.
        own: TakenGroup,
        /// The group its first forward reads; the pin comes back with that batch.
        pin: GroupPin,
    },
    /// No group has the key.
    Missing,
    /// No group can be had; nothing has changed.
    NoGroup,
}

impl GroupPool {
    /// All groups vacant, for one transfer class.
    pub fn new(groups: u32, transfer: &StateTransfer) -> Self {
        let mut vacant = IdSet::new(groups);
        for id in 0..groups {
            vacant.insert(id);
        }
        Self {
            groups: vec![Group::Vacant; groups as usize],
            vacant,
            kept: KeyTable::new(groups),
            recency: Order::new(groups),
            room: transfer.successor_room(),
        }
    }

    /// Takes a group for a new owner; `None` where all are owned or pinned.
    pub fn take(&mut self) -> Option<TakenGroup> {
        let (id, evicted) = if let Some(id) = self.vacant.first() {
            self.vacant.remove(id);
            (id, None)
        } else {
            let id = self.recency.first()?;
            self.recency.remove(id);
            let key = ContentKey::from_raw(self.kept.key(id));
            self.kept.remove(id);
            (id, Some(key))
        };
        self.groups[id as usize] = Group::Owned;
        Some(TakenGroup { group: SlotId::new(id), evicted })
    }

    /// Makes an owned group the checkpoint of `key`. `next_forward` are the tokens its owner's next
    /// forward has.
    ///
    /// # Panics
    /// Where the group is not owned.
    pub fn hand_over(&mut self, group: SlotId, key: ContentKey, next_forward: Tokens) -> HandOver {
        assert_eq!(self.groups[group.index()], Group::Owned, "{group} is owned");
        match self.room {
            SuccessorRoom::Tokens(room) if next_forward.get() >= room => {}
            SuccessorRoom::Tokens(_) | SuccessorRoom::Never => return HandOver::NoRoomAhead,
        }
        if self.contains(key) {
            return HandOver::Duplicate;
        }
        let Some(successor) = self.take() else { return HandOver::NoGroup };
        self.groups[group.index()] = Group::Kept { pins: 1 };
        self.kept.insert(key.raw(), group.raw());
        HandOver::Done { successor, pin: GroupPin { group } }
    }

    /// Whether a group is kept under `key`.
    pub fn contains(&self, key: ContentKey) -> bool {
        self.kept.get(key.raw()).is_some()
    }

    /// Pins the group of `key` and takes a fresh one for the resumer, in this order: the fresh one
    /// is never the one to be read.
    pub fn resume(&mut self, key: ContentKey) -> Resume {
        let Some(id) = self.kept.get(key.raw()) else { return Resume::Missing };
        let pin = self.pin(SlotId::new(id));
        let Some(own) = self.take() else {
            self.unpin(pin);
            return Resume::NoGroup;
        };
        Resume::Done { own, pin }
    }

    /// The forward that read the group is done.
    pub fn unpin(&mut self, pin: GroupPin) {
        let group = pin.group;
        std::mem::forget(pin);
        match &mut self.groups[group.index()] {
            Group::Kept { pins } => {
                *pins -= 1;
                if *pins == 0 {
                    self.recency.push_back(group.raw());
                }
            }
            Group::Leaving { pins } if *pins > 1 => *pins -= 1,
            Group::Leaving { .. } => self.vacate(group),
            other => panic!("{group} has no reader: {other:?}"),
        }
    }

    /// An owner gives its group back.
    ///
    /// # Panics
    /// Where the group is not owned.
    pub fn release(&mut self, group: SlotId) {
        assert_eq!(self.groups[group.index()], Group::Owned, "{group} is owned");
        self.vacate(group);
    }

    /// The KV under `key` is gone: so is its group, now or with its last reader. Answers whether
    /// there was one.
    pub fn unindex(&mut self, key: ContentKey) -> bool {
        let Some(id) = self.kept.get(key.raw()) else { return false };
        self.kept.remove(id);
        let group = SlotId::new(id);
        match self.groups[group.index()] {
            Group::Kept { pins: 0 } => {
                self.recency.remove(id);
                self.vacate(group);
            }
            Group::Kept { pins } => self.groups[group.index()] = Group::Leaving { pins },
            other => panic!("{group} is kept: {other:?}"),
        }
        true
    }

    /// Empties the cache of groups.
    pub fn clear(&mut self) {
        for id in 0..u32::try_from(self.groups.len()).expect("groups fit u32") {
            if matches!(self.groups[id as usize], Group::Kept { .. }) {
                self.unindex(ContentKey::from_raw(self.kept.key(id)));
            }
        }
    }

    /// Groups that nobody owns and no key leads to.
    pub const fn vacant(&self) -> u32 {
        self.vacant.len()
    }

    /// Groups that a key leads to.
    pub const fn kept(&self) -> u32 {
        self.kept.len()
    }

    fn pin(&mut self, group: SlotId) -> GroupPin {
        let Group::Kept { pins } = &mut self.groups[group.index()] else {
            panic!("{group} is kept");
        };
        if *pins == 0 {
            self.recency.remove(group.raw());
        }
        *pins += 1;
        GroupPin { group }
    }

    fn vacate(&mut self, group: SlotId) {
        self.groups[group.index()] = Group::Vacant;
        self.vacant.insert(group.raw());
    }
}

impl GroupPin {
    /// The group to read.
    pub const fn group(&self) -> SlotId {
        self.group
    }
}

impl Drop for GroupPin {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "pin of group {} dropped; unpin it", self.group);
    }
}
