//! Remote loads of parked requests: arriving, landing, failing, called off.

use statepages_page::RequestId;
use statepages_store::Residency;

use crate::connector::{Connector, LoadDone, LoadId, LoadOutcome};
use crate::engine::Engine;
use crate::output::{LoadEnd, Output};
use crate::runner::Runner;
use crate::sequence::{Admission, LoadStage};

impl<R: Runner, C: Connector> Engine<R, C> {
    pub(crate) fn load_done(&mut self, done: LoadDone) {
        let LoadDone { id, outcome } = done;
        if let Some(residency) = self.draining.remove(&id) {
            self.control.release(residency);
            return;
        }
        let Some(&request) = self.parked.get(&id) else {
            self.totals.loads_ignored += 1;
            return;
        };
        let sequence = self.sequences.get_mut(&request).expect("a parked request is known");
        let (parked, _) = sequence.parked_mut().expect("listed as parked");
        match (&parked.load.stage, outcome) {
            (LoadStage::Arrived { .. }, _) => self.totals.loads_ignored += 1,
            (LoadStage::Flying, LoadOutcome::Loaded(state)) => {
                let behind = self.flights.back().map(|flight| flight.id);
                parked.load.stage = LoadStage::Arrived { state, behind };
            }
            (LoadStage::Flying, LoadOutcome::Failed) => {
                self.totals.loads_failed += 1;
                let residency = self.unload(request);
                self.control.release(residency);
            }
        }
    }

    /// Keeps the memory of a load that may still write until its first completion.
    pub(crate) fn drain(&mut self, load: LoadId, residency: Residency) {
        self.totals.loads_cancelled += 1;
        self.draining.insert(load, residency);
        self.connector.cancel(load);
    }

    /// Calls off loads that take too long; their requests compute locally.
    pub(crate) fn call_off_late_loads(&mut self) {
        let deadline = self.issued.steps.saturating_sub(self.limits.load_steps_max());
        let late = |&(_, &request): &(&LoadId, &RequestId)| {
            let parked = self.sequences[&request].parked().expect("listed as parked");
            matches!(parked.load.stage, LoadStage::Flying) && parked.since < deadline
        };
        let late: Vec<_> =
            self.parked.iter().filter(late).map(|(&load, &request)| (load, request)).collect();
        for (load, request) in late {
            let residency = self.unload(request);
            self.drain(load, residency);
        }
    }

    /// Lands every load that has arrived and whose slot and pages no batch in flight can touch.
    pub(crate) fn land_arrived_loads(&mut self) {
        for request in self.parked.values().copied().collect::<Vec<_>>() {
            self.land(request);
        }
    }

    fn land(&mut self, request: RequestId) {
        let sequence = self.sequences.get_mut(&request).expect("a parked request is known");
        let (parked, keys) = sequence.parked_mut().expect("listed as parked");
        let LoadStage::Arrived { state, behind } = &parked.load.stage else { return };
        let slot = parked.residency.slot();
        let touched = self.flights.iter().any(|flight| {
            behind.is_some_and(|behind| flight.id <= behind)
                || flight.restored.contains(&parked.admission)
        });
        if touched {
            return;
        }
        let block = keys.block();
        let (from, to) = (parked.load.from, parked.load.to);
        let pages =
            block.blocks_floor(from.tokens()).index()..block.blocks_floor(to.tokens()).index();
        if self.runner.land(slot, &parked.residency.pages()[pages], state).is_err() {
            self.totals.loads_failed += 1;
            let residency = self.unload(request);
            self.control.release(residency);
            return;
        }
        self.control.accept_load(&mut parked.residency, keys, to);
        let admission = parked.admission;
        self.unlist(request);
        let sequence = self.sequences.get_mut(&request).expect("a parked request is known");
        sequence.unpark();
        sequence.usage.loaded += to.tokens() - from.tokens();
        self.running.insert(admission, request);
        self.totals.loads_landed += 1;
        self.outputs.push_back(Output::Unparked { request, load: LoadEnd::Landed(to) });
    }

    /// A failed batch carried the restore of this residency: where it is parked still, its request
    /// computes locally.
    pub(crate) fn unload_spoilt(&mut self, admission: Admission) {
        let spoilt = self.parked.iter().find_map(|(&load, &request)| {
            let parked = self.sequences[&request].parked().expect("listed as parked");
            (parked.admission == admission).then_some((load, request, &parked.load.stage))
        });
        let Some((load, request, stage)) = spoilt else { return };
        let flying = matches!(stage, LoadStage::Flying);
        let residency = self.unload(request);
        if flying {
            self.drain(load, residency);
        } else {
            self.control.release(residency);
        }
    }

    /// Parked -> Waiting.
    fn unload(&mut self, request: RequestId) -> Residency {
        self.unlist(request);
        let sequence = self.sequences.get_mut(&request).expect("a listed request is known");
        let residency = sequence.unload();
        self.waiting.insert(sequence.arrival, request);
        self.outputs.push_back(Output::Unparked { request, load: LoadEnd::Failed });
        residency
    }
}
