//! Slots that are lent together are the ones that were asked for, and lent once each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use statepages_page::SlotId;

use crate::twin::{Twin, small_layout};

const SLOTS: u32 = 5;

fn slots(ids: &[u32]) -> Vec<SlotId> {
    ids.iter().copied().map(SlotId::new).collect()
}

#[test]
fn lent_slots_are_those_asked_for_in_their_order() {
    let layout = small_layout();
    for ids in [&[][..], &[0], &[4], &[2, 3], &[3, 0, 4], &[4, 3, 2, 1, 0], &[1, 0, 2, 3, 4]] {
        let mut twin = Twin::filled(&layout, 1, SLOTS, 7);
        let mut arena = twin.arena(&layout);
        let planes = arena.planes();
        assert_eq!(planes, layout.slot.planes().len());
        let lent = arena.slots_mut(&slots(ids));
        assert_eq!(lent.len(), ids.len() * planes);
        for (i, bytes) in lent.into_iter().enumerate() {
            let expected = &mut twin.slots[ids[i / planes] as usize][i % planes];
            assert_eq!(bytes, expected, "plane {} of slot {}", i % planes, ids[i / planes]);
            bytes.fill(i as u8);
            expected.fill(i as u8);
        }
        twin.assert_equals(&arena, &format!("slots {ids:?} written"));
    }
}

#[test]
fn no_slot_is_lent_twice_and_none_that_does_not_exist() {
    let layout = small_layout();
    let twin = Twin::filled(&layout, 1, SLOTS, 7);
    for ids in [&[1, 1][..], &[0, 3, 0], &[SLOTS], &[0, SLOTS + 3]] {
        let mut arena = twin.arena(&layout);
        let lent = catch_unwind(AssertUnwindSafe(|| arena.slots_mut(&slots(ids)).len()));
        assert!(lent.is_err(), "{ids:?} were lent");
    }
}
