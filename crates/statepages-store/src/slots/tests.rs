//! The slot pool in lockstep with a naive twin.

use proptest::prelude::*;
use statepages_page::{BatchId, SlotId, Tokens};

use super::{SlotBytes, SlotPool, SlotRelease, Untouch};
use crate::config::BackendOrder;

/// A tenant as the twin sees it: where it is, and which batches hold on to it.
#[derive(Clone, Debug)]
struct Tenant {
    slot: u32,
    tenancy: u64,
    state: Kind,
    flights: Vec<u64>,
    unknown: bool,
    /// The tenancy that its state has moved on to.
    moved_to: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Taken,
    Departing,
    Fenced,
}

#[derive(Clone, Debug)]
enum Act {
    Take,
    Release(u8),
    Depart(u8),
    Carry(u8),
    CancelDeparture(u8),
    Touch(u8, u8),
    Settle(u8, bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => Just(Act::Take),
        3 => any::<u8>().prop_map(Act::Release),
        2 => any::<u8>().prop_map(Act::Depart),
        2 => any::<u8>().prop_map(Act::Carry),
        1 => any::<u8>().prop_map(Act::CancelDeparture),
        6 => (any::<u8>(), 0..3u8).prop_map(|(s, b)| Act::Touch(s, b)),
        4 => (any::<u8>(), any::<bool>()).prop_map(|(s, f)| Act::Settle(s, f)),
    ]
}

struct Pair {
    real: SlotPool,
    tenants: Vec<Tenant>,
    slots: u32,
    order: BackendOrder,
    batch: u64,
    /// Touches to return: slot, tenancy, batch.
    receipts: Vec<(u32, u64, u64)>,
    next_tenancy: u64,
}

impl Pair {
    fn pick(&self, which: u8, kind: Kind) -> Option<usize> {
        let all: Vec<usize> =
            (0..self.tenants.len()).filter(|&at| self.tenants[at].state == kind).collect();
        all.get(usize::from(which) % all.len().max(1)).copied()
    }

    fn lowest_free(&self) -> Option<u32> {
        (0..self.slots).find(|slot| self.tenants.iter().all(|tenant| tenant.slot != *slot))
    }

    fn take(&mut self, unknown: bool) -> Option<u32> {
        let slot = self.lowest_free()?;
        self.tenants.push(Tenant {
            slot,
            tenancy: self.next_tenancy,
            state: Kind::Taken,
            flights: Vec::new(),
            unknown,
            moved_to: None,
        });
        self.next_tenancy += 1;
        Some(slot)
    }

    /// Ends a tenancy now, or with its last batch.
    fn leave(&mut self, at: usize) -> SlotRelease {
        if self.order == BackendOrder::Unordered && !self.tenants[at].flights.is_empty() {
            self.tenants[at].state = Kind::Fenced;
            self.tenants[at].moved_to = None;
            return SlotRelease::Fenced;
        }
        self.tenants.remove(at);
        SlotRelease::Free
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Take => {
                let want = self.take(false);
                assert_eq!(self.real.take(Tokens::ZERO).map(SlotId::raw), want);
            }
            Act::Release(which) => {
                let Some(at) = self.pick(which, Kind::Taken) else { return };
                let slot = SlotId::new(self.tenants[at].slot);
                let got = self.real.release(slot, self.order);
                assert_eq!(got, self.leave(at));
            }
            Act::Depart(which) => {
                let Some(at) = self.pick(which, Kind::Taken) else { return };
                let slot = SlotId::new(self.tenants[at].slot);
                let got = self.real.depart(slot).map(SlotId::raw);
                let want = self.take(self.tenants[at].unknown);
                assert_eq!(got, want);
                if want.is_some() {
                    self.tenants[at].state = Kind::Departing;
                    self.tenants[at].moved_to = Some(self.next_tenancy - 1);
                }
            }
            Act::Carry(which) => {
                let Some(at) = self.pick(which, Kind::Departing) else { return };
                self.touch(at);
                self.real.carry(SlotId::new(self.tenants[at].slot));
                self.tenants[at].state = Kind::Fenced;
            }
            Act::CancelDeparture(which) => {
                let Some(at) = self.pick(which, Kind::Departing) else { return };
                let before = self.real.free();
                self.real.cancel_departure(SlotId::new(self.tenants[at].slot), self.order);
                let freed = self.leave(at) == SlotRelease::Free;
                assert_eq!(self.real.free() - before, u32::from(freed));
            }
            Act::Touch(which, advance) => {
                self.batch += u64::from(advance == 0);
                let Some(at) = self.pick(which, Kind::Taken) else { return };
                self.touch(at);
            }
            Act::Settle(which, failed) => self.settle(which, failed),
        }
    }

    fn touch(&mut self, at: usize) {
        let Tenant { slot, tenancy, .. } = self.tenants[at];
        let got = self.real.touch(SlotId::new(slot), BatchId::new(self.batch));
        let first = !self.tenants[at].flights.contains(&self.batch)
            && !self.receipts.contains(&(slot, tenancy, self.batch));
        // A batch is settled as a whole, so the twin never touches for a settled one again.
        assert_eq!(got, first.then_some(tenancy));
        if first {
            self.tenants[at].flights.push(self.batch);
            self.receipts.push((slot, tenancy, self.batch));
        }
    }

    fn settle(&mut self, which: u8, failed: bool) {
        if self.receipts.is_empty() {
            return;
        }
        let batch = self.receipts[usize::from(which) % self.receipts.len()].2;
        if batch == self.batch {
            self.batch += 1;
        }
        let (mine, rest) = self.receipts.drain(..).partition(|receipt| receipt.2 == batch);
        self.receipts = rest;
        let mine: Vec<(u32, u64, u64)> = mine;
        if failed {
            for &(slot, tenancy, _) in &mine {
                self.real.poison(SlotId::new(slot), tenancy);
                let mut next = Some(tenancy);
                while let Some(tenancy) = next {
                    let tenant = self.tenants.iter_mut().find(|t| t.tenancy == tenancy);
                    next = tenant.and_then(|tenant| {
                        tenant.unknown = true;
                        tenant.moved_to
                    });
                }
            }
        }
        for (slot, tenancy, _) in mine {
            let got = self.real.untouch(SlotId::new(slot), tenancy);
            let mut want = Untouch::Nothing;
            if let Some(at) = self.tenants.iter().position(|t| t.tenancy == tenancy) {
                self.tenants[at].flights.retain(|&flight| flight != batch);
                if self.tenants[at].flights.is_empty() && self.tenants[at].state == Kind::Fenced {
                    self.tenants.remove(at);
                    want = Untouch::Freed;
                }
            }
            assert_eq!(got, want);
        }
    }

    fn compare(&self) {
        let taken = self.tenants.iter().filter(|t| t.state == Kind::Taken).count() as u32;
        assert_eq!(self.real.check(), taken);
        assert_eq!(self.real.free(), self.slots - self.tenants.len() as u32);
        assert_eq!(self.real.fenced(), self.tenants.len() as u32 - taken);
        for tenant in &self.tenants {
            let slot = SlotId::new(tenant.slot);
            assert_eq!(self.real.is_taken(slot), tenant.state == Kind::Taken);
            assert_eq!(self.real.in_flight(slot) as usize, tenant.flights.len());
            let bytes = if tenant.unknown { SlotBytes::Unknown } else { SlotBytes::Known };
            assert_eq!(self.real.bytes(slot), bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn slots_move_in_lockstep_with_their_twin(
        slots in 1..7u32,
        ordered in any::<bool>(),
        acts in prop::collection::vec(act(), 1..160),
    ) {
        let order = if ordered { BackendOrder::Ordered } else { BackendOrder::Unordered };
        let mut pair = Pair {
            real: SlotPool::new(slots),
            tenants: Vec::new(),
            slots,
            order,
            batch: 1,
            receipts: Vec::new(),
            next_tenancy: 0,
        };
        for act in &acts {
            pair.act(act);
            pair.compare();
        }
    }
}
