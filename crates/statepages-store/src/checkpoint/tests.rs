//! The checkpoint store in lockstep with a naive twin.

use proptest::prelude::*;
use statepages_page::{Boundary, CheckpointId, ContentKey, PageId, Pages, RequestId};

use super::{CheckpointStore, Ended, Image, RecordIndex, Unindexed, Written};
use crate::placement::KeepReason;
use crate::pool::PagePool;

const UNITS: u32 = 3;

#[derive(Clone, Debug)]
struct Twin {
    id: u64,
    key: u8,
    state: Kind,
    index: RecordIndex,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Copying,
    Ready(u32),
    Evicting { writer: bool, pins: u32, reset: bool },
}

#[derive(Debug, Default)]
struct Naive {
    records: Vec<Twin>,
    /// Ids of unpinned READY records, oldest use first.
    order: Vec<u64>,
    next_id: u64,
    ended: Ended,
}

#[derive(Clone, Debug)]
enum Act {
    Begin(u8),
    Publish(u8),
    Fail(u8),
    Pin(u8),
    Unpin(u8),
    Evict(u8),
    Unindex(u8),
    Orphan(u8),
    Clear,
    AsideAndBack(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0..8u8).prop_map(Act::Begin),
        6 => any::<u8>().prop_map(Act::Publish),
        1 => any::<u8>().prop_map(Act::Fail),
        5 => (0..8u8).prop_map(Act::Pin),
        5 => any::<u8>().prop_map(Act::Unpin),
        2 => any::<u8>().prop_map(Act::Evict),
        3 => (0..8u8).prop_map(Act::Unindex),
        1 => any::<u8>().prop_map(Act::Orphan),
        1 => Just(Act::Clear),
        2 => any::<u8>().prop_map(Act::AsideAndBack),
    ]
}

fn key(k: u8) -> ContentKey {
    ContentKey::from_raw(u128::from(k))
}

impl Naive {
    fn with(&self, key: u8, wanted: impl Fn(Kind) -> bool) -> Option<usize> {
        self.records.iter().position(|r| r.key == key && wanted(r.state))
    }

    fn end(&mut self, at: usize) {
        let record = self.records.remove(at);
        self.order.retain(|&id| id != record.id);
        if let Kind::Evicting { reset, .. } = record.state {
            if reset {
                self.ended.reset += 1;
            } else {
                self.ended.orphaned += 1;
            }
        }
    }

    fn take_away(&mut self, at: usize, reset: bool) {
        let (writer, pins) = match self.records[at].state {
            Kind::Copying => (true, 0),
            Kind::Ready(pins) => (false, pins),
            Kind::Evicting { .. } => return,
        };
        self.records[at].state = Kind::Evicting { writer, pins, reset };
        let id = self.records[at].id;
        self.order.retain(|&other| other != id);
        if !writer && pins == 0 {
            self.end(at);
        }
    }

    fn pick(&self, which: u8, wanted: impl Fn(Kind) -> bool) -> Option<usize> {
        let all: Vec<usize> =
            (0..self.records.len()).filter(|&at| wanted(self.records[at].state)).collect();
        all.get(usize::from(which) % all.len().max(1)).copied()
    }

    fn act(&mut self, real: &mut CheckpointStore, pool: &mut PagePool, act: &Act) {
        let writing = |k| matches!(k, Kind::Copying | Kind::Evicting { writer: true, .. });
        match *act {
            Act::Begin(k) => {
                let taken = self.with(k, |s| matches!(s, Kind::Copying | Kind::Ready(_))).is_some();
                assert_eq!(real.lookup(key(k)).is_some() || real.is_copying(key(k)), taken);
                if taken || pool.vacant() < UNITS {
                    return;
                }
                let units: Vec<PageId> = (0..UNITS).map(|_| pool.hold_vacant().unwrap()).collect();
                let image = Image {
                    key: key(k),
                    boundary: Boundary::from_raw(4),
                    reason: KeepReason::Grid,
                    request: RequestId::new(1),
                };
                let index = real.begin(image, &units, pool);
                assert_eq!(real.id(index), CheckpointId::new(self.next_id), "ids are never reused");
                assert_eq!(real.units(index), units);
                self.records.push(Twin { id: self.next_id, key: k, state: Kind::Copying, index });
                self.next_id += 1;
                self.ended.begun += 1;
            }
            Act::Publish(which) => {
                let Some(at) = self.pick(which, writing) else { return };
                let Twin { id, index, state, .. } = self.records[at];
                let got = real.publish(index, pool);
                if state == Kind::Copying {
                    assert_eq!(got, Written::Ready(CheckpointId::new(id)));
                    self.records[at].state = Kind::Ready(0);
                    self.order.push(id);
                } else {
                    assert_eq!(got, Written::Ended);
                    self.end(at);
                }
            }
            Act::Fail(which) => {
                let Some(at) = self.pick(which, writing) else { return };
                real.fail(self.records[at].index, pool);
                if self.records[at].state == Kind::Copying {
                    self.ended.failed += 1;
                }
                self.end(at);
            }
            Act::Orphan(which) => {
                let Some(at) = self.pick(which, |k| k == Kind::Copying) else { return };
                real.orphan(self.records[at].index, pool);
                self.ended.orphaned += 1;
                self.end(at);
            }
            Act::Pin(k) => {
                let at = self.with(k, |s| matches!(s, Kind::Ready(_)));
                assert_eq!(real.lookup(key(k)), at.map(|at| self.records[at].index));
                let Some(at) = at else { return };
                real.pin(self.records[at].index);
                let Kind::Ready(pins) = &mut self.records[at].state else { panic!("READY") };
                *pins += 1;
                let id = self.records[at].id;
                self.order.retain(|&other| other != id);
            }
            Act::Unpin(which) => {
                let pinned = |k| match k {
                    Kind::Ready(pins) | Kind::Evicting { pins, .. } => pins > 0,
                    Kind::Copying => false,
                };
                let Some(at) = self.pick(which, pinned) else { return };
                real.unpin(self.records[at].index, pool);
                let id = self.records[at].id;
                match &mut self.records[at].state {
                    Kind::Ready(pins) => {
                        *pins -= 1;
                        if *pins == 0 {
                            self.order.push(id);
                        }
                    }
                    Kind::Evicting { pins, .. } => {
                        *pins -= 1;
                        if *pins == 0 {
                            self.end(at);
                        }
                    }
                    Kind::Copying => panic!("nobody reads a COPYING record"),
                }
            }
            Act::Evict(which) => {
                let Some(at) = self.pick(which, |k| k == Kind::Ready(0)) else { return };
                real.evict(self.records[at].index, pool);
                self.ended.evicted += 1;
                self.end(at);
            }
            Act::Unindex(k) => {
                let got = real.unindex(key(k), pool);
                let at = self.with(k, |s| matches!(s, Kind::Copying | Kind::Ready(_)));
                let want = match at.map(|at| (self.records[at].state, self.records[at].id)) {
                    None => Unindexed::Nothing,
                    Some((Kind::Copying, _)) => Unindexed::Copying,
                    Some((_, id)) => Unindexed::Ready(CheckpointId::new(id)),
                };
                assert_eq!(got, want);
                if let Some(at) = at {
                    self.take_away(at, false);
                }
            }
            Act::Clear => {
                let mut gone = 0;
                let ready =
                    self.records.iter().filter(|r| matches!(r.state, Kind::Ready(_))).count();
                real.clear(pool, |_, _| gone += 1);
                assert_eq!(gone, ready);
                for at in (0..self.records.len()).rev() {
                    self.take_away(at, true);
                }
            }
            Act::AsideAndBack(mask) => {
                let chosen: Vec<RecordIndex> = self
                    .order
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| mask & 1 << (at % 8) != 0)
                    .map(|(_, &id)| real.index_of(CheckpointId::new(id)))
                    .collect();
                for &index in &chosen {
                    real.set_aside(index);
                }
                let left = self.order.len() - chosen.len();
                assert_eq!(real.evictable_units(None) as usize, left * UNITS as usize);
                for &index in chosen.iter().rev() {
                    real.put_back(index);
                }
            }
        }
    }

    fn compare(&self, real: &CheckpointStore, pool: &PagePool) {
        real.check(pool);
        pool.check();
        assert_eq!(real.ended(), self.ended);
        let writers = self
            .records
            .iter()
            .filter(|r| matches!(r.state, Kind::Copying | Kind::Evicting { writer: true, .. }));
        assert_eq!(real.units_in_writing() as usize, writers.count() * UNITS as usize);
        assert_eq!(pool.raw() as usize, self.records.len() * UNITS as usize);
        // The gate, for every record that could be protected, against a walk.
        for protected in std::iter::once(None).chain(self.records.iter().map(Some)) {
            let id = protected.map(|record| CheckpointId::new(record.id));
            let eligible: Vec<CheckpointId> = self
                .order
                .iter()
                .map(|&id| CheckpointId::new(id))
                .filter(|&other| Some(other) != id)
                .collect();
            let units = real.evictable_units(protected.map(|record| record.index));
            assert_eq!(units as usize, eligible.len() * UNITS as usize);
            let got: Vec<CheckpointId> = std::iter::successors(real.oldest_evictable(id), |&at| {
                real.evictable_after(at, id)
            })
            .collect();
            assert_eq!(got, eligible);
        }
        for record in &self.records {
            let eligible = record.state == Kind::Ready(0);
            assert_eq!(real.is_evictable(CheckpointId::new(record.id), None), eligible);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_store_moves_in_lockstep_with_its_twin(
        pages in 0..30u32,
        acts in prop::collection::vec(act(), 1..160),
    ) {
        let pages = Pages::new(pages);
        let mut pool = PagePool::new(pages, pages);
        let mut real = CheckpointStore::new(Some(Pages::new(UNITS)), pages);
        let mut twin = Naive::default();
        for act in &acts {
            twin.act(&mut real, &mut pool, act);
            twin.compare(&real, &pool);
        }
    }
}
