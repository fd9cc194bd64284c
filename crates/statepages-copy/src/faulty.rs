//! A backend that misbehaves as devices do, by script.
//!
//! For tests of what stands above a backend, and for simulations: an engine that reuses a slot
//! before its receipt, publishes a failed store or forgets a restore shows it here.

use std::collections::VecDeque;

use statepages_page::{MaintenanceOps, StateLayout};

use crate::host::{Copier, Tickets};
use crate::{CopyBackend, CopyError, CopyOrder, CopyState, CopyTicket, HostArena};

/// What happens to one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is done at the `polls`-th poll of the backend after its submission, whichever ticket is
    /// polled. All its bytes are read and written at that very moment, so batches that take longer
    /// complete after younger ones.
    Delay {
        /// Polls until it is done; 0 copies at submission.
        polls: u32,
    },
    /// Submission fails; nothing is written.
    FailSubmit,
    /// It fails at the `polls`-th poll.
    Tear {
        /// Polls until it fails.
        polls: u32,
        /// Relocations and spans that were copied all the same.
        moves: usize,
    },
    /// Its restores are lost: it is done at once, and their slots stay as their previous owners
    /// left them.
    SkipRestores,
}

struct Flight {
    ticket: CopyTicket,
    ops: MaintenanceOps,
    polls_left: u32,
    /// Moves after which the batch fails; `None` for one that completes.
    torn_after: Option<usize>,
}

/// Executes batches on a [`HostArena`], each as its scripted [`Fault`] says; batches beyond the
/// script are copied at submission.
pub struct FaultyBackend {
    copier: Copier,
    tickets: Tickets,
    script: VecDeque<Fault>,
    flights: Vec<Flight>,
}

impl FaultyBackend {
    /// A backend with an empty script.
    pub fn new(layout: StateLayout) -> Self {
        Self {
            copier: Copier::new(layout),
            tickets: Tickets::new(),
            script: VecDeque::new(),
            flights: Vec::new(),
        }
    }

    /// Scripts the next unscripted batch.
    pub fn script(&mut self, fault: Fault) {
        self.script.push_back(fault);
    }

    /// Batches that are neither done nor failed.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Lets one poll's time pass: completes and fails what is due, oldest first.
    fn tick(&mut self, memory: &mut HostArena) -> Result<(), CopyError> {
        let mut index = 0;
        while index < self.flights.len() {
            let flight = &mut self.flights[index];
            flight.polls_left -= 1;
            if flight.polls_left > 0 {
                index += 1;
                continue;
            }
            let flight = self.flights.remove(index);
            self.copier.run(memory, &flight.ops, flight.torn_after.unwrap_or(usize::MAX));
            if flight.torn_after.is_some() {
                return Err(device_error("torn batch"));
            }
        }
        Ok(())
    }
}

fn device_error(message: &str) -> CopyError {
    CopyError::Device { message: message.into() }
}

impl CopyBackend for FaultyBackend {
    type Memory = HostArena;

    fn layout(&self) -> &StateLayout {
        self.copier.layout()
    }

    fn order(&self) -> CopyOrder {
        CopyOrder::Unordered
    }

    fn submit(
        &mut self,
        memory: &mut HostArena,
        ops: &MaintenanceOps,
    ) -> Result<CopyTicket, CopyError> {
        self.tickets.sound()?;
        let checked = self.copier.check(memory, ops);
        self.tickets.latch(checked.map_err(CopyError::from))?;
        let (polls_left, torn_after) = match self.script.pop_front() {
            None | Some(Fault::Delay { polls: 0 }) => {
                self.copier.run(memory, ops, usize::MAX);
                return Ok(self.tickets.issue());
            }
            Some(Fault::SkipRestores) => {
                let mut kept = ops.clone();
                kept.restores.clear();
                self.copier.run(memory, &kept, usize::MAX);
                return Ok(self.tickets.issue());
            }
            Some(Fault::FailSubmit) => {
                return self.tickets.latch(Err(device_error("submission failed")));
            }
            Some(Fault::Delay { polls }) => (polls, None),
            Some(Fault::Tear { polls, moves }) => (polls.max(1), Some(moves)),
        };
        let ticket = self.tickets.issue();
        self.flights.push(Flight { ticket, ops: ops.clone(), polls_left, torn_after });
        Ok(ticket)
    }

    fn poll(&mut self, memory: &mut HostArena, ticket: CopyTicket) -> Result<CopyState, CopyError> {
        self.tickets.valid(ticket)?;
        let ticked = self.tick(memory);
        self.tickets.latch(ticked)?;
        let in_flight = self.flights.iter().any(|flight| flight.ticket == ticket);
        Ok(if in_flight { CopyState::Pending } else { CopyState::Done })
    }

    fn reset(&mut self) {
        self.flights.clear();
        self.tickets.reset();
    }
}
