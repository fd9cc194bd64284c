//! A connector that stands in for a slow and faulty remote side.
//!
//! It delays, fails, completes out of order, completes twice, and never completes, as its seed
//! says. Time is the number of polls that found nothing due; there is no clock.

use statepages_page::{Boundary, DomainTag};

use crate::connector::{Connector, Load, LoadDone, LoadId, LoadOutcome, LoadQuery};
use crate::runner::RemoteState;

/// What lies at the remote side.
pub trait RemoteSource {
    /// The largest boundary, not beyond `limit`, of which the remote side holds pages and state for
    /// exactly these tokens of this domain.
    fn reach(&self, domain: DomainTag, tokens: &[u32], limit: Boundary) -> Option<Boundary>;

    /// The bytes of `from .. to` and the state at `to`; `tokens` end at `to`.
    fn fetch(&self, domain: DomainTag, tokens: &[u32], from: Boundary, to: Boundary)
    -> RemoteState;
}

/// How often each fault strikes, in loads of a hundred. What is left completes once, well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Seeds every draw.
    pub seed: u64,
    /// Steps that a load takes at most; each load draws its own, so loads overtake each other.
    pub steps_max: u32,
    /// Loads that end as failed.
    pub failing: u8,
    /// Loads whose completion comes twice.
    pub doubled: u8,
    /// Loads that end only when they are cancelled.
    pub stuck: u8,
    /// Loads that never end, cancelled or not: the other side is lost.
    pub lost: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Well,
    Failing,
    Doubled,
    Stuck,
    Lost,
}

#[derive(Debug)]
struct Flight {
    id: LoadId,
    fate: Fate,
    due: u64,
    state: Option<RemoteState>,
}

/// The connector. See the module's head.
#[derive(Debug)]
pub struct DelayedConnector<S> {
    source: S,
    faults: Faults,
    draws: u64,
    now: u64,
    flights: Vec<Flight>,
}

impl<S: RemoteSource> DelayedConnector<S> {
    /// A connector to `source`.
    ///
    /// # Panics
    /// Where the faults come to more than a hundred of a hundred loads.
    pub fn new(source: S, faults: Faults) -> Self {
        let Faults { failing, doubled, stuck, lost, .. } = faults;
        let all = [failing, doubled, stuck, lost].iter().map(|&f| u32::from(f)).sum::<u32>();
        assert!(all <= 100, "faults of {all} in a hundred loads");
        Self { source, faults, draws: 0, now: 0, flights: Vec::new() }
    }

    /// Loads that were started and have not ended.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Loads that will never end by themselves, cancelled or not.
    pub fn lost(&self) -> usize {
        self.flights.iter().filter(|flight| flight.fate == Fate::Lost).count()
    }

    /// The other side is found dead: nothing of it writes any more, and its loads end as failed.
    pub fn declare_dead(&mut self) {
        for flight in self.flights.iter_mut().filter(|flight| flight.fate == Fate::Lost) {
            flight.fate = Fate::Failing;
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.draws += 1;
        mix(self.faults.seed ^ mix(self.draws)) % below
    }

    fn draw_fate(&mut self) -> Fate {
        let mut rest = self.draw(100);
        let Faults { failing, doubled, stuck, lost, .. } = self.faults;
        for (share, fate) in [
            (failing, Fate::Failing),
            (doubled, Fate::Doubled),
            (stuck, Fate::Stuck),
            (lost, Fate::Lost),
        ] {
            match rest.checked_sub(u64::from(share)) {
                None => return fate,
                Some(left) => rest = left,
            }
        }
        Fate::Well
    }
}

impl<S: RemoteSource> Connector for DelayedConnector<S> {
    fn offer(&mut self, query: &LoadQuery<'_>) -> Option<Boundary> {
        self.source
            .reach(query.domain, query.tokens, query.limit)
            .filter(|&reach| reach > query.local)
    }

    fn start(&mut self, load: &Load<'_>) {
        let fate = self.draw_fate();
        let due = self.now + 1 + self.draw(u64::from(self.faults.steps_max) + 1);
        let state = match fate {
            Fate::Failing | Fate::Lost => None,
            Fate::Well | Fate::Doubled | Fate::Stuck => {
                Some(self.source.fetch(load.domain, load.tokens, load.from, load.to))
            }
        };
        self.flights.push(Flight { id: load.id, fate, due, state });
    }

    fn cancel(&mut self, id: LoadId) {
        // A cancelled load ends as failed, sooner or later; one that is doubled still ends twice.
        let due = self.now + 1 + self.draw(u64::from(self.faults.steps_max) + 1);
        for flight in self.flights.iter_mut().filter(|f| f.id == id && f.fate == Fate::Stuck) {
            *flight = Flight { id, fate: Fate::Failing, due, state: None };
        }
    }

    fn poll(&mut self) -> Option<LoadDone> {
        let ready = self.flights.iter().position(|flight| {
            flight.due <= self.now && !matches!(flight.fate, Fate::Stuck | Fate::Lost)
        });
        let Some(index) = ready else {
            self.now += 1;
            return None;
        };
        let mut flight = self.flights.remove(index);
        let outcome = match flight.fate {
            Fate::Failing => LoadOutcome::Failed,
            _ => LoadOutcome::Loaded(flight.state.clone().expect("a load that succeeds has bytes")),
        };
        let id = flight.id;
        if flight.fate == Fate::Doubled {
            flight.fate = Fate::Well;
            flight.due = self.now + 1;
            self.flights.push(flight);
        }
        Some(LoadDone { id, outcome })
    }
}

/// SplitMix64's finaliser: the low bits of its results are as good as the high ones.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
