//! Admission, stores and victims in lockstep with a naive twin that walks plain lists.

use std::collections::BTreeMap;

use proptest::prelude::*;
use statepages_page::{Boundary, ContentKey, RequestId};
use statepages_store::{
    Admit, AdmitReport, AdmitRequest, KeepReason, Outcome, PromptKeys, Refusal, Residency,
};

use crate::support::{BLOCK, Rig, at, keys, tokens};

const UNITS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Page {
    Vacant,
    Cached,
    Live(u32),
    Unit,
}

#[derive(Debug)]
struct Record {
    id: u64,
    key: ContentKey,
    units: Vec<u32>,
    pins: u32,
    /// Its key still leads to it.
    found: bool,
}

struct Tenant {
    request: u64,
    slot: u32,
    pages: Vec<u32>,
    position: u32,
    published: usize,
    stale: bool,
}

#[derive(Default)]
struct Naive {
    pages: Vec<Page>,
    index: BTreeMap<ContentKey, u32>,
    /// Cached pages, freed longest ago first.
    cached: Vec<u32>,
    records: Vec<Record>,
    /// Unpinned found records, used longest ago first.
    order: Vec<u64>,
    slots: Vec<bool>,
    tenants: Vec<Tenant>,
    pending: Vec<(u64, u32, ContentKey)>,
    queued: Vec<(u32, u64)>,
    next_record: u64,
    evicted: u64,
    orphaned: u64,
    no_room: u64,
    superseded: u64,
    duplicate: u64,
}

impl Naive {
    fn count(&self, page: Page) -> usize {
        self.pages.iter().filter(|p| **p == page).count()
    }

    fn available(&self) -> usize {
        self.count(Page::Vacant) + self.cached.len() + self.order.len() * UNITS
    }

    fn lowest_vacant(&self) -> Option<u32> {
        self.pages.iter().position(|p| *p == Page::Vacant).map(|at| at as u32)
    }

    fn end_record(&mut self, at: usize) {
        let record = self.records.remove(at);
        for unit in record.units {
            self.pages[unit as usize] = Page::Vacant;
        }
        self.order.retain(|&id| id != record.id);
    }

    fn lose(&mut self, key: ContentKey) {
        let mut lost = self.pending.iter().any(|entry| entry.2 == key);
        self.pending.retain(|entry| entry.2 != key);
        if let Some(at) = self.records.iter().position(|r| r.key == key && r.found) {
            lost = true;
            self.records[at].found = false;
            let id = self.records[at].id;
            self.order.retain(|&other| other != id);
            if self.records[at].pins == 0 {
                self.end_record(at);
            }
        }
        self.orphaned += u64::from(lost);
    }

    /// Cached blocks, oldest first; then records, least recently used first.
    fn give_up_one(&mut self) {
        if self.cached.is_empty() {
            let id = self.order[0];
            let at = self.records.iter().position(|r| r.id == id).unwrap();
            self.end_record(at);
            self.evicted += 1;
        } else {
            let page = self.cached.remove(0);
            self.pages[page as usize] = Page::Vacant;
            let key = *self.index.iter().find(|(_, p)| **p == page).unwrap().0;
            self.index.remove(&key);
            self.lose(key);
        }
    }

    fn take_page(&mut self) -> u32 {
        while self.lowest_vacant().is_none() {
            self.give_up_one();
        }
        let page = self.lowest_vacant().unwrap();
        self.pages[page as usize] = Page::Live(1);
        page
    }

    fn admit(
        &mut self,
        request: u64,
        keys: &PromptKeys,
    ) -> Result<(u32, u32, Option<u32>), Refusal> {
        let n = keys.len().get();
        let cap = (n - 1) / BLOCK;
        let key = |block: u32| Rig::key(keys, block * BLOCK);
        let kv = (1..=cap).take_while(|&block| self.index.contains_key(&key(block))).count() as u32;
        let hit = (1..=kv)
            .rev()
            .find(|&block| self.records.iter().any(|r| r.found && r.key == key(block)))
            .unwrap_or(0);
        let Some(slot) = self.slots.iter().position(|taken| !taken) else {
            return Err(Refusal::NoSlot);
        };
        let need = n.div_ceil(BLOCK) - hit;
        let claims: Vec<u32> = (1..=hit).map(|block| self.index[&key(block)]).collect();
        let revived = claims.iter().filter(|p| self.pages[**p as usize] == Page::Cached).count();
        let protected = self.records.iter().find(|r| hit > 0 && r.found && r.key == key(hit));
        let kept = protected.is_some_and(|r| r.pins == 0);
        let available = self.available() - if kept { UNITS } else { 0 };
        let taken = need as usize + revived;
        if taken > available {
            return Err(Refusal::NoRoom);
        }
        let fits = available - taken > UNITS + self.tenants.len();
        let demand = (kv > hit && fits).then_some(kv * BLOCK);
        self.slots[slot] = true;
        if let Some(id) = protected.map(|r| r.id) {
            self.records.iter_mut().find(|r| r.id == id).unwrap().pins += 1;
            self.order.retain(|&other| other != id);
            self.queued.push((slot as u32, id));
        }
        let mut pages = Vec::new();
        for page in claims {
            self.cached.retain(|&other| other != page);
            let state = &mut self.pages[page as usize];
            *state = match *state {
                Page::Live(shares) => Page::Live(shares + 1),
                _ => Page::Live(1),
            };
            pages.push(page);
        }
        for _ in 0..need {
            let page = self.take_page();
            pages.push(page);
        }
        self.tenants.push(Tenant {
            request,
            slot: slot as u32,
            pages,
            position: hit * BLOCK,
            published: hit as usize,
            stale: false,
        });
        Ok((kv * BLOCK, hit * BLOCK, demand))
    }

    /// A batch that is built, run and settled at once, so that nothing is ever seen COPYING.
    fn batch(&mut self) -> Vec<(u64, Vec<u32>)> {
        let mut stores = Vec::new();
        while !self.pending.is_empty() {
            let (request, boundary, key) = self.pending[0];
            let tenant = self.tenants.iter().find(|t| t.request == request).unwrap();
            let queued = self.queued.iter().any(|(slot, _)| *slot == tenant.slot);
            if tenant.position != boundary || queued {
                self.superseded += 1;
            } else if !self.index.contains_key(&key) {
                self.orphaned += 1;
            } else if self.records.iter().any(|r| r.found && r.key == key) {
                self.duplicate += 1;
            } else if self.available() < UNITS + self.tenants.len() {
                self.no_room += 1;
            } else {
                while self.count(Page::Vacant) < UNITS {
                    self.give_up_one();
                }
                if self.pending.first() != Some(&(request, boundary, key)) {
                    continue;
                }
                let units: Vec<u32> = (0..UNITS)
                    .map(|_| {
                        let page = self.lowest_vacant().unwrap();
                        self.pages[page as usize] = Page::Unit;
                        page
                    })
                    .collect();
                stores.push((self.next_record, units.clone()));
                self.records.push(Record {
                    id: self.next_record,
                    key,
                    units,
                    pins: 1,
                    found: true,
                });
                self.next_record += 1;
            }
            self.pending.remove(0);
        }
        for &(id, _) in &stores {
            if let Some(at) = self.records.iter().position(|r| r.id == id) {
                self.records[at].pins = 0;
                if self.records[at].found {
                    self.order.push(id);
                } else {
                    self.end_record(at);
                }
            }
        }
        for (_, id) in std::mem::take(&mut self.queued) {
            self.unpin(id);
        }
        stores
    }

    fn unpin(&mut self, id: u64) {
        let at = self.records.iter().position(|r| r.id == id).unwrap();
        self.records[at].pins -= 1;
        if self.records[at].pins == 0 {
            if self.records[at].found {
                self.order.push(id);
            } else {
                self.end_record(at);
            }
        }
    }

    fn advance(&mut self, request: u64, keys: &PromptKeys, to: u32) {
        let tenant = self.tenants.iter_mut().find(|t| t.request == request).unwrap();
        tenant.position = to;
        if tenant.stale {
            return;
        }
        for block in tenant.published..(to / BLOCK) as usize {
            let page = tenant.pages[block];
            let key = Rig::key(keys, (block as u32 + 1) * BLOCK);
            if let Some(old) = self.index.insert(key, page)
                && self.pages[old as usize] == Page::Cached
            {
                self.pages[old as usize] = Page::Vacant;
                self.cached.retain(|&other| other != old);
            }
        }
        tenant.published = tenant.published.max((to / BLOCK) as usize);
    }

    fn release(&mut self, request: u64) {
        let at = self.tenants.iter().position(|t| t.request == request).unwrap();
        let tenant = self.tenants.remove(at);
        self.slots[tenant.slot as usize] = false;
        self.pending.retain(|entry| entry.0 != request);
        if let Some(at) = self.queued.iter().position(|(slot, _)| *slot == tenant.slot) {
            let (_, id) = self.queued.remove(at);
            self.unpin(id);
        }
        for page in tenant.pages.into_iter().rev() {
            match self.pages[page as usize] {
                Page::Live(1) => {
                    let found = self.index.values().any(|p| *p == page);
                    self.pages[page as usize] = if found { Page::Cached } else { Page::Vacant };
                    if found {
                        self.cached.push(page);
                    }
                }
                Page::Live(shares) => self.pages[page as usize] = Page::Live(shares - 1),
                other => panic!("{other:?}"),
            }
        }
    }

    fn reset(&mut self) {
        self.pending.clear();
        for at in (0..self.records.len()).rev() {
            self.records[at].found = false;
            if self.records[at].pins == 0 {
                self.end_record(at);
            }
        }
        self.order.clear();
        for page in std::mem::take(&mut self.cached) {
            self.pages[page as usize] = Page::Vacant;
        }
        self.index.clear();
        self.tenants.iter_mut().for_each(|tenant| tenant.stale = true);
    }
}

#[derive(Clone, Debug)]
enum Act {
    Admit { stem: u8, length: u8 },
    Run { which: u8, count: u8 },
    File { which: u8 },
    Batch,
    Release { which: u8 },
    Reset,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        20 => (0..5u8, 1..30u8).prop_map(|(stem, length)| Act::Admit { stem, length }),
        24 => (any::<u8>(), 1..16u8).prop_map(|(which, count)| Act::Run { which, count }),
        20 => any::<u8>().prop_map(|which| Act::File { which }),
        8 => Just(Act::Batch),
        14 => any::<u8>().prop_map(|which| Act::Release { which }),
        1 => Just(Act::Reset),
    ]
}

struct Pair {
    rig: Rig,
    twin: Naive,
    residents: Vec<(Residency, PromptKeys)>,
    next: u64,
}

impl Pair {
    fn act(&mut self, act: &Act) {
        let Self { rig, twin, residents, next } = self;
        match *act {
            Act::Admit { stem, length } => {
                let stem = u32::from(stem);
                let text: Vec<u32> = (0..u32::from(length))
                    .map(|i| if i < 9 { i } else { stem * 100 + i })
                    .collect();
                let keys = keys(&text);
                *next += 1;
                let request = RequestId::new(*next);
                let ask = AdmitRequest { request, keys: &keys, gated: None };
                let got = rig.plane.try_admit(&ask).unwrap();
                match (got, twin.admit(*next, &keys)) {
                    (Admit::Admitted(residency, report), Ok((kv, hit, demand))) => {
                        let AdmitReport { hit: got, demand: asked, .. } = report;
                        assert_eq!((got.kv.get(), got.resumable.get()), (kv, hit));
                        assert_eq!(asked.map(Boundary::get), demand);
                        let tenant = twin.tenants.last().unwrap();
                        assert_eq!(residency.slot().raw(), tenant.slot);
                        let pages: Vec<u32> = residency.pages().iter().map(|p| p.raw()).collect();
                        assert_eq!(pages, tenant.pages);
                        residents.push((residency, keys));
                    }
                    (Admit::Refused(got), Err(want)) => assert_eq!(got, want),
                    (got, want) => panic!("{got:?} against {want:?}"),
                }
            }
            Act::Run { which, count } if !residents.is_empty() => {
                let at = usize::from(which) % residents.len();
                let (residency, keys) = &mut residents[at];
                let from = rig.plane.scheduled(residency).get();
                let to = (from + u32::from(count)).min(keys.len().get());
                if to == from {
                    return;
                }
                let mut receipt = rig.plane.begin_batch(&mut rig.ops);
                rig.plane.join(&mut receipt, residency, tokens(to));
                Self::compare_stores(rig, twin);
                rig.plane.settle(receipt, Outcome::Done);
                rig.plane.advance(residency, keys, tokens(to));
                twin.advance(residency.request().raw(), keys, to);
            }
            Act::File { which } if !residents.is_empty() => {
                let (residency, keys) = &residents[usize::from(which) % residents.len()];
                let position = rig.plane.computed(residency).get();
                if let Some(key) = keys.key_at(at(position)) {
                    rig.plane.file(residency, at(position), key, KeepReason::Grid);
                    let request = residency.request().raw();
                    let tenant = twin.tenants.iter().find(|t| t.request == request).unwrap();
                    let again = twin.pending.iter().any(|e| e.0 == request && e.2 == key);
                    if !tenant.stale && !again {
                        let before = twin.pending.len();
                        twin.pending.retain(|entry| entry.0 != request);
                        twin.superseded += (before - twin.pending.len()) as u64;
                        twin.pending.push((request, position, key));
                    }
                }
            }
            Act::Batch => {
                let receipt = rig.plane.begin_batch(&mut rig.ops);
                Self::compare_stores(rig, twin);
                rig.plane.settle(receipt, Outcome::Done);
            }
            Act::Release { which } if !residents.is_empty() => {
                let (residency, _) = residents.swap_remove(usize::from(which) % residents.len());
                twin.release(residency.request().raw());
                rig.plane.release(residency);
            }
            Act::Reset => {
                rig.plane.reset();
                twin.reset();
            }
            Act::Run { .. } | Act::File { .. } | Act::Release { .. } => {}
        }
    }

    fn compare_stores(rig: &Rig, twin: &mut Naive) {
        let want = twin.batch();
        let got: Vec<(u64, Vec<u32>)> = rig
            .ops
            .stores
            .iter()
            .map(|op| {
                let units = rig.ops.units(op.units).iter().map(|page| page.raw()).collect();
                (op.checkpoint.raw(), units)
            })
            .collect();
        assert_eq!(got, want);
    }

    fn compare(&self) {
        self.rig.plane.check();
        let (gauges, counters) = (self.rig.plane.gauges(), self.rig.plane.counters());
        let twin = &self.twin;
        assert_eq!(gauges.pages_vacant as usize, twin.count(Page::Vacant));
        assert_eq!(gauges.pages_cached as usize, twin.cached.len());
        assert_eq!(gauges.pages_raw as usize, twin.count(Page::Unit));
        assert_eq!(gauges.pages_available as usize, twin.available());
        assert_eq!(gauges.blocks_indexed as usize, twin.index.len());
        assert_eq!(gauges.pending as usize, twin.pending.len());
        assert_eq!(gauges.queued_restores as usize, twin.queued.len());
        assert_eq!(gauges.ready as usize, twin.records.iter().filter(|r| r.found).count());
        assert_eq!(
            (counters.kept, counters.evicted, counters.orphaned_keys),
            (twin.next_record, twin.evicted, twin.orphaned)
        );
        assert_eq!(
            (counters.no_room, counters.superseded, counters.duplicate),
            (twin.no_room, twin.superseded, twin.duplicate)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn admission_moves_in_lockstep_with_its_twin(
        pages in 4..40u32,
        slots in 1..5u32,
        acts in prop::collection::vec(act(), 1..200),
    ) {
        let twin = Naive {
            pages: vec![Page::Vacant; pages as usize],
            slots: vec![false; slots as usize],
            ..Naive::default()
        };
        let rig = Rig::new(pages, slots);
        let mut pair = Pair { rig, twin, residents: Vec::new(), next: 0 };
        for act in &acts {
            pair.act(act);
            pair.compare();
        }
        for (residency, _) in pair.residents {
            pair.rig.plane.release(residency);
        }
    }
}
