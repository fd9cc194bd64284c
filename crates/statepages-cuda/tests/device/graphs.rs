//! Captured graphs, replayed with batches that they were not captured with.

use statepages_copy::CopyState;
use statepages_cuda::{Checks, GraphShape, Passing, Replay, StagingLimits, Vendor};
use statepages_page::{MaintenanceOps, Relocation, SlotId};

use crate::lockstep::Pair;
use crate::stand_in::StandIn;
use crate::world::{self, Dice, Most};

const STAGING: StagingLimits = StagingLimits { batches: 2, images: 4 };

#[test]
fn replays_equal_the_host() {
    let shape = GraphShape { launches: 3, relocations: 4, images: 6 };
    for (index, variant) in world::variants().into_iter().step_by(5).enumerate() {
        let seed = 500 + index as u64;
        let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::Host) else { return };
        stand_in.seed(seed);
        let layout = variant.of(&world::tiny_config());
        let size = (layout.units_per_checkpoint().get() * 5, 6);
        let mut pair = Pair::new(
            &layout,
            stand_in.backend(&layout, size, (STAGING, Passing::Arguments)),
            seed,
        );
        let mut graph = pair.device.capture(shape).unwrap();
        let mut dice = Dice(seed);
        let (mut launched, mut busy) = (0, 0);
        for _ in 0..16 {
            let most = Most { relocations: 4, stores: 3, restores: 3 };
            let ops = world::bundle(&mut dice, &layout, size, most);
            match pair.device.replay(&mut graph, &mut pair.memory, &ops).unwrap() {
                Replay::Launched(ticket) => {
                    launched += 1;
                    pair.run_host(&ops);
                    if dice.below(2) == 0 {
                        pair.wait(ticket);
                        pair.compare(&format!("{variant:?}"));
                    }
                }
                Replay::Busy => {
                    busy += 1;
                    let ticket = pair.submit(&ops);
                    pair.wait(ticket);
                }
                Replay::TooLarge => {
                    let ticket = pair.submit(&ops);
                    pair.wait(ticket);
                }
            }
        }
        assert!(launched > 0 && busy > 0, "{launched} launched, {busy} busy");
        drop(graph);
        drop(pair);
        assert_eq!(stand_in.live(), 0, "something was made and never destroyed");
        assert_eq!(stand_in.guard_faults(), 0);
    }
}

#[test]
fn a_batch_beyond_the_graph_enqueues_nothing() {
    let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::Host) else { return };
    let layout = world::variants()[0].of(&world::tiny_config());
    let mut pair =
        Pair::new(&layout, stand_in.backend(&layout, (40, 4), (STAGING, Passing::Arguments)), 1);
    let shape = GraphShape { launches: 1, relocations: 1, images: 1 };
    let mut graph = pair.device.capture(shape).unwrap();
    let mut ops = MaintenanceOps::default();
    ops.relocations.push(Relocation { from: SlotId::new(0), to: SlotId::new(1) });
    ops.relocations.push(Relocation { from: SlotId::new(2), to: SlotId::new(3) });
    let replayed = pair.device.replay(&mut graph, &mut pair.memory, &ops);
    assert_eq!(replayed, Ok(Replay::TooLarge));
    pair.compare("nothing was copied");
    ops.relocations.pop();
    let Ok(Replay::Launched(ticket)) = pair.device.replay(&mut graph, &mut pair.memory, &ops)
    else {
        panic!("one relocation fits")
    };
    pair.run_host(&ops);
    pair.wait(ticket);
    assert_eq!(pair.poll(ticket), CopyState::Done);
    pair.compare("one relocation");
}
