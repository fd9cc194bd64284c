//! Explores small worlds and prints what was found: `cargo run --release -p statepages-sim --example
//! small_worlds`, or with `largest` the largest one alone.

use std::io::Write as _;

use statepages_sim::{TRANSITIONS, explore, larger_worlds, largest_world, small_worlds};

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let worlds = if std::env::args().nth(1).as_deref() == Some("largest") {
        vec![("three requests of two prefixes", largest_world())]
    } else {
        small_worlds().into_iter().chain(larger_worlds()).collect()
    };
    for (name, small) in worlds {
        match explore(&small) {
            Ok(found) => {
                let never =
                    TRANSITIONS.iter().filter(|name| !found.reached.contains_key(*name)).count();
                writeln!(
                    out,
                    "{name}: {} states, {} transitions, depth {}, complete {}, {} of {} named \
                     transitions",
                    found.states,
                    found.transitions,
                    found.depth,
                    found.complete,
                    TRANSITIONS.len() - never,
                    TRANSITIONS.len(),
                )?;
            }
            Err(broken) => writeln!(out, "{name}: {broken:#?}")?,
        }
    }
    Ok(())
}
