//! The state machine of one request.
//!
//! ```text
//!             admit                    last prefill chunk scheduled
//!  Waiting ----------> Running(Prefill) ----------> Running(Decode)
//!   ^   | admit, with     ^   |                        |
//!   |   | a remote load   |   | preempt                | preempt
//!   |   v                 |   v                        v
//!   | Parked -------------'  Preempted <---------------'
//!   |   |      land              | admit: as from Waiting
//!   '---'                        v
//!   load failed               Running | Parked
//!
//!  every state -- finish --> Finished (kept until no batch in flight names the request)
//! ```
//!
//! Invariants
//! - A slot and pages are held in Parked and Running and in no other state: the residency lives in
//!   the variant and leaves it by value, named in what the transition says is [`Owed`].
//! - The control plane alone knows how many tokens of a residency were scheduled and computed.
//!   Scheduled tokens exceed the known ones by drafts alone, until these are verified; where they do
//!   not fall short of them a token is outstanding and the request is not schedulable.
//! - `admission` is never reused, so a result that comes back for an earlier residency of the same
//!   request is told from one of this residency.
//! - Tokens only grow: prompt, then generated ones. A preempted request keeps them all and prefills
//!   them again.
//!
//! Who may call what: `engine` alone owns sequences; planning reads them, the transitions below are
//! the only writers of `state`.

use statepages_model::Sampling;
use statepages_page::{BatchId, Boundary, RequestId, Tokens};
use statepages_store::{PromptKeys, Residency, Scope};

use crate::connector::LoadId;
use crate::metrics::Usage;
use crate::output::FinishReason;
use crate::request::{LogitsReport, Request, Stop};
use crate::runner::RemoteState;

/// Order of submission; requests are admitted in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Arrival(pub(crate) u64);

/// One residency of one request. Ascends with each admission; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Admission(pub(crate) u64);

/// Whether the remote side may still be asked on behalf of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remote {
    /// It has not been.
    Untried,
    /// One load was tried; the request computes locally from here on.
    Spent,
}

/// A request, from submission until nothing in flight names it.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) arrival: Arrival,
    /// Prompt and generated tokens with their keys.
    pub(crate) keys: PromptKeys,
    /// Tokens of the prompt.
    pub(crate) prompt: Tokens,
    pub(crate) sampling: Sampling,
    /// Seeds every draw, together with the drawn token's position.
    pub(crate) seed: u64,
    pub(crate) stop: Stop,
    pub(crate) logits: LogitsReport,
    pub(crate) remote: Remote,
    pub(crate) usage: Usage,
    /// Batches in flight that carry a row of this request, of any residency.
    pub(crate) rows_out: u32,
    state: State,
}

#[derive(Debug)]
pub(crate) enum State {
    /// Not yet admitted, or back after a failed remote load.
    Waiting,
    /// Resident; a remote load fills its pages and slot.
    Parked(Parked),
    /// Resident and computing.
    Running(Running),
    /// Was resident; holds nothing.
    Preempted,
    /// Ended.
    Finished(FinishReason),
}

#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) residency: Residency,
    pub(crate) admission: Admission,
    pub(crate) load: Loading,
    /// The step it was parked in.
    pub(crate) since: u64,
    pub(crate) place: Place,
}

/// A remote load of a parked request.
#[derive(Debug)]
pub(crate) struct Loading {
    pub(crate) id: LoadId,
    /// First position loaded.
    pub(crate) from: Boundary,
    /// Where the loaded state stands.
    pub(crate) to: Boundary,
    pub(crate) stage: LoadStage,
}

#[derive(Debug)]
pub(crate) enum LoadStage {
    /// Under way.
    Flying,
    /// Arrived; the bytes wait until the batches that were in flight then are settled, because any
    /// of them may touch the slot or the pages.
    Arrived {
        /// The bytes.
        state: RemoteState,
        /// The youngest batch to wait for.
        behind: Option<BatchId>,
    },
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) residency: Residency,
    pub(crate) admission: Admission,
    pub(crate) place: Place,
}

/// What placement needs to know of one residency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Tokens to prefill in all: those known at the admission.
    pub(crate) prefill: Tokens,
    /// The boundary that the admission asked for.
    pub(crate) demand: Option<Boundary>,
    /// What else it is cut for.
    pub(crate) scope: Scope,
    /// The last boundary kept, or the one it resumed from.
    pub(crate) last_kept: Boundary,
    /// End of the latest forward, where placement has not yet been asked about it.
    pub(crate) unasked: Option<Tokens>,
}

/// What the caller of a transition now owes.
#[must_use]
#[derive(Debug)]
pub(crate) enum Owed {
    /// Nothing was held.
    Nothing,
    /// The residency is to be released.
    Release(Residency),
    /// A load may still write into the residency: it is to be cancelled, and the residency to be
    /// kept until the load's completion.
    Drain(LoadId, Residency),
}

impl Sequence {
    /// A waiting request; `sampling` is the request's, parsed, and `keys` are empty.
    pub(crate) fn new(
        request: Request,
        sampling: Sampling,
        arrival: Arrival,
        mut keys: PromptKeys,
    ) -> Self {
        let Request { id, prompt, tenant_salt: _, adapter: _, sampling: raw, stop, logits } =
            request;
        keys.extend(&prompt);
        let prompt = keys.len();
        Self {
            id,
            arrival,
            keys,
            prompt,
            sampling,
            seed: raw.seed,
            stop,
            logits,
            remote: Remote::Untried,
            usage: Usage::new(prompt),
            rows_out: 0,
            state: State::Waiting,
        }
    }

    pub(crate) const fn state(&self) -> &State {
        &self.state
    }

    /// Tokens known.
    pub(crate) fn len(&self) -> Tokens {
        self.keys.len()
    }

    /// The generated tokens.
    pub(crate) fn generated(&self) -> &[u32] {
        &self.keys.tokens()[self.prompt.index()..]
    }

    pub(crate) const fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Running(running) => Some(running),
            _ => None,
        }
    }

    pub(crate) const fn parked(&self) -> Option<&Parked> {
        match &self.state {
            State::Parked(parked) => Some(parked),
            _ => None,
        }
    }

    /// Its slot and pages, where it holds any.
    pub(crate) const fn resident(&self) -> Option<(Admission, &Residency)> {
        match &self.state {
            State::Running(Running { admission, residency, .. })
            | State::Parked(Parked { admission, residency, .. }) => Some((*admission, residency)),
            State::Waiting | State::Preempted | State::Finished(_) => None,
        }
    }

    /// The running part together with the keys it is advanced by.
    pub(crate) const fn running_mut(&mut self) -> Option<(&mut Running, &PromptKeys)> {
        match &mut self.state {
            State::Running(running) => Some((running, &self.keys)),
            _ => None,
        }
    }

    pub(crate) const fn parked_mut(&mut self) -> Option<(&mut Parked, &PromptKeys)> {
        match &mut self.state {
            State::Parked(parked) => Some((parked, &self.keys)),
            _ => None,
        }
    }

    /// Whether it waits for an admission.
    pub(crate) const fn waits(&self) -> bool {
        matches!(self.state, State::Waiting | State::Preempted)
    }

    /// Waiting or Preempted -> Running.
    ///
    /// # Panics
    /// In any other state.
    pub(crate) fn run(&mut self, running: Running) {
        assert!(self.waits(), "{} admitted twice", self.id);
        self.state = State::Running(running);
    }

    /// Waiting or Preempted -> Parked.
    ///
    /// # Panics
    /// In any other state.
    pub(crate) fn park(&mut self, parked: Parked) {
        assert!(self.waits(), "{} admitted twice", self.id);
        self.remote = Remote::Spent;
        self.state = State::Parked(parked);
    }

    /// Parked -> Running, standing where the load has brought it.
    ///
    /// # Panics
    /// In any other state.
    pub(crate) fn unpark(&mut self) {
        let State::Parked(parked) = self.take() else { panic!("{} is not parked", self.id) };
        let Parked { residency, admission, load, since: _, mut place } = parked;
        place.last_kept = load.to;
        place.unasked = Some(load.to.tokens());
        self.state = State::Running(Running { residency, admission, place });
    }

    /// Parked -> Waiting: the load has failed or takes too long, or the slot has been spoilt. The
    /// caller knows whether the load may still write, and drains or releases the residency.
    ///
    /// # Panics
    /// In any other state.
    pub(crate) fn unload(&mut self) -> Residency {
        let State::Parked(parked) = self.take() else { panic!("{} is not parked", self.id) };
        parked.residency
    }

    /// Running -> Preempted. The residency is to be released.
    ///
    /// # Panics
    /// In any other state.
    pub(crate) fn preempt(&mut self) -> Residency {
        let State::Running(running) = self.take() else { panic!("{} is not running", self.id) };
        self.state = State::Preempted;
        running.residency
    }

    /// Any live state -> Finished.
    ///
    /// # Panics
    /// Where it has finished already.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> Owed {
        match std::mem::replace(&mut self.state, State::Finished(reason)) {
            State::Waiting | State::Preempted => Owed::Nothing,
            State::Finished(was) => panic!("{} had finished: {was}", self.id),
            State::Running(running) => Owed::Release(running.residency),
            State::Parked(Parked { residency, load, .. }) => match load.stage {
                LoadStage::Flying => Owed::Drain(load.id, residency),
                LoadStage::Arrived { .. } => Owed::Release(residency),
            },
        }
    }

    /// Leaves Waiting behind; every caller but `unload` sets another state at once.
    fn take(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Waiting)
    }
}
