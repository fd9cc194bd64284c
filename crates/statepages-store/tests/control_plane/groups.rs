//! Slot groups of forking state, in lockstep with a naive twin.

use proptest::prelude::*;
use statepages_page::{ContentKey, LayoutId, SlotId, Tokens};
use statepages_store::{GroupPin, GroupPool, HandOver, Resume, StateTransfer};

/// The twin: plain lists, searched from end to end.
#[derive(Default)]
struct Naive {
    groups: Vec<Kind>,
    /// Unpinned kept groups, oldest use first.
    order: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Vacant,
    Owned,
    Kept(u32, u32),
    Leaving(u32),
}

impl Naive {
    fn take(&mut self) -> Option<(usize, Option<u32>)> {
        if let Some(group) = self.groups.iter().position(|g| *g == Kind::Vacant) {
            self.groups[group] = Kind::Owned;
            return Some((group, None));
        }
        if self.order.is_empty() {
            return None;
        }
        let group = self.order.remove(0);
        let Kind::Kept(key, 0) = self.groups[group] else { panic!("unpinned") };
        self.groups[group] = Kind::Owned;
        Some((group, Some(key)))
    }

    fn find(&self, key: u32) -> Option<usize> {
        self.groups.iter().position(|g| matches!(g, Kind::Kept(k, _) if *k == key))
    }

    fn pin(&mut self, group: usize) {
        let Kind::Kept(_, pins) = &mut self.groups[group] else { panic!("kept") };
        *pins += 1;
        self.order.retain(|g| *g != group);
    }

    fn unpin(&mut self, group: usize) {
        match &mut self.groups[group] {
            Kind::Kept(_, pins) => {
                *pins -= 1;
                if *pins == 0 {
                    self.order.push(group);
                }
            }
            Kind::Leaving(1) => self.groups[group] = Kind::Vacant,
            Kind::Leaving(pins) => *pins -= 1,
            other => panic!("{other:?}"),
        }
    }

    fn unindex(&mut self, key: u32) -> bool {
        let Some(group) = self.find(key) else { return false };
        let Kind::Kept(_, pins) = self.groups[group] else { panic!("kept") };
        self.groups[group] = if pins == 0 { Kind::Vacant } else { Kind::Leaving(pins) };
        self.order.retain(|g| *g != group);
        true
    }
}

#[derive(Clone, Debug)]
enum Act {
    Take,
    Release(u8),
    HandOver(u8, u8, u8),
    Resume(u8),
    Unpin(u8),
    Unindex(u8),
    Clear,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => Just(Act::Take),
        2 => any::<u8>().prop_map(Act::Release),
        4 => (any::<u8>(), 0..6u8, 0..4u8).prop_map(|(g, k, n)| Act::HandOver(g, k, n)),
        4 => (0..6u8).prop_map(Act::Resume),
        5 => any::<u8>().prop_map(Act::Unpin),
        1 => (0..6u8).prop_map(Act::Unindex),
        1 => Just(Act::Clear),
    ]
}

fn key(k: u8) -> ContentKey {
    ContentKey::from_raw(u128::from(k))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn groups_move_in_lockstep_with_their_twin(
        groups in 1..7u32,
        room in 1..3u32,
        acts in prop::collection::vec(act(), 1..120),
    ) {
        let mut real = GroupPool::new(groups, &StateTransfer::Fork { tokens: room });
        let mut twin = Naive { groups: vec![Kind::Vacant; groups as usize], order: Vec::new() };
        let mut owned: Vec<SlotId> = Vec::new();
        let mut pins: Vec<GroupPin> = Vec::new();
        let raw = |(group, evicted): (usize, Option<u32>)| {
            (group as u32, evicted.map(u128::from))
        };
        for act in acts {
            match act {
                Act::Take => {
                    let got = real.take();
                    let want = twin.take().map(raw);
                    prop_assert_eq!(got.map(|t| (t.group.raw(), t.evicted.map(ContentKey::raw))), want);
                    owned.extend(got.map(|t| t.group));
                }
                Act::Release(which) if !owned.is_empty() => {
                    let group = owned.swap_remove(usize::from(which) % owned.len());
                    real.release(group);
                    twin.groups[group.index()] = Kind::Vacant;
                }
                Act::HandOver(which, k, ahead) if !owned.is_empty() => {
                    let at = usize::from(which) % owned.len();
                    let group = owned[at];
                    let got = real.hand_over(group, key(k), Tokens::new(u32::from(ahead)));
                    if u32::from(ahead) < room {
                        prop_assert!(matches!(got, HandOver::NoRoomAhead));
                    } else if twin.find(u32::from(k)).is_some() {
                        prop_assert!(matches!(got, HandOver::Duplicate));
                    } else if let Some(want) = twin.take() {
                        let HandOver::Done { successor, pin } = got else {
                            return Err(TestCaseError::fail("handed over"));
                        };
                        let got = (successor.group.raw(), successor.evicted.map(ContentKey::raw));
                        prop_assert_eq!(got, raw(want));
                        prop_assert_eq!(pin.group(), group);
                        twin.groups[group.index()] = Kind::Kept(u32::from(k), 1);
                        owned[at] = successor.group;
                        pins.push(pin);
                    } else {
                        prop_assert!(matches!(got, HandOver::NoGroup));
                    }
                }
                Act::Resume(k) => {
                    let got = real.resume(key(k));
                    let Some(source) = twin.find(u32::from(k)) else {
                        prop_assert!(matches!(got, Resume::Missing));
                        continue;
                    };
                    twin.pin(source);
                    match (got, twin.take()) {
                        (Resume::Done { own, pin }, Some(want)) => {
                            let got = (own.group.raw(), own.evicted.map(ContentKey::raw));
                            prop_assert_eq!(got, raw(want));
                            prop_assert_eq!(pin.group().index(), source);
                            owned.push(own.group);
                            pins.push(pin);
                        }
                        (Resume::NoGroup, None) => twin.unpin(source),
                        (got, want) => {
                            return Err(TestCaseError::fail(format!("{got:?} against {want:?}")));
                        }
                    }
                }
                Act::Unpin(which) if !pins.is_empty() => {
                    let pin = pins.swap_remove(usize::from(which) % pins.len());
                    twin.unpin(pin.group().index());
                    real.unpin(pin);
                }
                Act::Unindex(k) => {
                    prop_assert_eq!(real.unindex(key(k)), twin.unindex(u32::from(k)));
                }
                Act::Clear => {
                    real.clear();
                    for k in 0..6 {
                        twin.unindex(k);
                    }
                }
                Act::Release(_) | Act::HandOver(..) | Act::Unpin(_) => {}
            }
            let vacant = twin.groups.iter().filter(|g| **g == Kind::Vacant).count();
            let kept = twin.groups.iter().filter(|g| matches!(g, Kind::Kept(..))).count();
            prop_assert_eq!((real.vacant() as usize, real.kept() as usize), (vacant, kept));
        }
        for pin in pins {
            real.unpin(pin);
        }
    }
}

#[test]
fn a_class_that_never_transfers_and_one_that_copies() {
    let mut none = GroupPool::new(2, &StateTransfer::None);
    let group = none.take().unwrap().group;
    let many = Tokens::new(1_000_000);
    assert!(matches!(none.hand_over(group, key(1), many), HandOver::NoRoomAhead));
    none.release(group);
    let layout = LayoutId::new("l").unwrap();
    let mut copy = GroupPool::new(1, &StateTransfer::Copy { layout });
    let group = copy.take().unwrap().group;
    assert!(copy.take().is_none());
    copy.release(group);
    assert_eq!(copy.vacant(), 1);
}
