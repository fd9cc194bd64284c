//! Building a batch: who takes part, how far each goes, and what is copied first.
//!
//! Order: decodes, then running prefills, then admissions; each oldest first. (Under
//! [`Passes::PrefillFirst`] decodes come last, and only where nothing is prefilled.) Boundaries reached by
//! a batch that is still in flight are filed here, before the batch that moves their slot on; all
//! others were filed with their results. The drain is last, and happens only for a batch with rows.

use statepages_page::{Boundary, MaintenanceOps, RequestId, SlotId, Tokens};
use statepages_store::{
    Admit, AdmitReport, AdmitRequest, Ahead, Append, BackendOrder, Filed, Progress, Residency,
};

use crate::connector::{Connector, Load, LoadId, LoadQuery};
use crate::engine::{Engine, Flight};
use crate::output::{Failure, FinishReason, Output, PreemptCause};
use crate::runner::{LogitsWanted, Row, Runner, StepBatch};
use crate::schedule::{Budget, Passes};
use crate::sequence::{Admission, LoadStage, Loading, Parked, Place, Remote, Running};

/// One request's part in the batch being built.
#[derive(Clone, Debug)]
struct Part {
    request: RequestId,
    /// Known tokens scheduled once the batch is built.
    end: Tokens,
    /// Guesses of the tokens behind them.
    drafts: Vec<u32>,
}

impl Part {
    const fn new(request: RequestId, end: Tokens) -> Self {
        Self { request, end, drafts: Vec::new() }
    }
}

/// How a decode got the page for its next token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PageAnswer {
    /// It has it.
    Had,
    /// It has it, and a younger request gave its pages up.
    Taken,
    /// It sits this batch out: pages were given up, and a batch in flight still touches them.
    Later,
    /// It was the youngest and gave its own pages up.
    GaveUp,
}

/// What became of the oldest waiting request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Head {
    /// It computes.
    Runs,
    /// It waits for a remote load, with slot and pages.
    Parks,
    /// It has ended.
    Fails,
    /// It waits on, and so does everyone behind it.
    Waits,
}

/// What a connector offered.
#[derive(Clone, Copy, Debug)]
struct Offer {
    from: Boundary,
    to: Boundary,
}

impl<R: Runner, C: Connector> Engine<R, C> {
    /// The next batch; `None` where it would be empty.
    pub(crate) fn build(&mut self) -> Option<StepBatch> {
        let mut budget = Budget::new(self.limits.batched_tokens_max());
        let mut parts = Vec::with_capacity(self.running.len());
        match self.passes {
            Passes::Mixed => {
                let short = self.plan_decodes(&mut budget, &mut parts);
                self.plan_prefills(&mut budget, &mut parts);
                // Pages just given up are for the older request that lacked them, not for a new one.
                if !short {
                    self.plan_admissions(&mut budget, &mut parts);
                }
            }
            Passes::PrefillFirst => {
                self.plan_prefills(&mut budget, &mut parts);
                // Pages given up for a decode are not for a new request, though it would go first: the
                // decode may have had to wait for them, and would do so for ever.
                let held_up = self.decodes_short;
                if !held_up {
                    self.plan_admissions(&mut budget, &mut parts);
                }
                if parts.is_empty() {
                    self.decodes_short = self.plan_decodes(&mut budget, &mut parts);
                }
                if held_up && parts.is_empty() && !self.decodes_short {
                    self.plan_admissions(&mut budget, &mut parts);
                }
            }
        }
        self.totals.prefill_chunks += budget.chunks();
        self.totals.placement_cuts += budget.cuts();
        if parts.is_empty() {
            return None;
        }
        self.plan_drafts(&mut budget, &mut parts);
        for part in &parts {
            self.ask_placement(part.request);
        }
        Some(self.assemble(&parts))
    }

    /// Plans one token for each request whose last token is known and not yet computed. Answers
    /// whether pages were short.
    fn plan_decodes(&mut self, budget: &mut Budget, parts: &mut Vec<Part>) -> bool {
        let mut short = false;
        let order: Vec<(Admission, RequestId)> =
            self.running.iter().map(|(&admission, &id)| (admission, id)).collect();
        for (admission, request) in order {
            if !self.running.contains_key(&admission) {
                continue;
            }
            let sequence = &self.sequences[&request];
            let running = sequence.running().expect("listed as running");
            let scheduled = self.control.scheduled(&running.residency);
            let decodes = scheduled >= running.place.prefill && scheduled < sequence.len();
            if !decodes || !self.may_join(&running.residency) {
                continue;
            }
            let end = scheduled + Tokens::new(1);
            assert_eq!(end, sequence.len(), "{request} decodes one token at a time");
            let answer = self.page_for(request, end);
            short |= answer != PageAnswer::Had;
            if matches!(answer, PageAnswer::Had | PageAnswer::Taken) {
                budget.decode();
                parts.push(Part::new(request, end));
            }
        }
        short
    }

    /// Sees to it that `request` has the pages for `end` tokens, at the cost of younger requests.
    fn page_for(&mut self, request: RequestId, end: Tokens) -> PageAnswer {
        let needed = self.control.config().block.blocks_ceil(end).index();
        let mut answer = PageAnswer::Had;
        loop {
            let sequence = self.sequences.get_mut(&request).expect("a running request is known");
            let (running, _) = sequence.running_mut().expect("it runs");
            if running.residency.pages().len() >= needed {
                return answer;
            }
            match self.control.append_block(&mut running.residency) {
                Append::Done(_) => continue,
                Append::NoRoom => {}
            }
            if answer == PageAnswer::Taken && !self.flights.is_empty() {
                return PageAnswer::Later;
            }
            answer = PageAnswer::Taken;
            let (_, &youngest) = self.running.last_key_value().expect("one runs at least");
            self.preempt(youngest, PreemptCause::NoPage);
            if youngest == request {
                return PageAnswer::GaveUp;
            }
        }
    }

    fn plan_prefills(&mut self, budget: &mut Budget, parts: &mut Vec<Part>) {
        let placement = self.control.placement();
        for &request in self.running.values() {
            let running = self.sequences[&request].running().expect("listed as running");
            let start = self.control.scheduled(&running.residency);
            if start < running.place.prefill
                && self.may_join(&running.residency)
                && let Some(end) = budget.prefill(&placement, &running.place, start)
            {
                parts.push(Part::new(request, end));
            }
        }
    }

    /// Admits waiting requests, oldest first, and plans their first chunks. The first one that has
    /// to wait holds up those behind it, so that none is overtaken for ever.
    fn plan_admissions(&mut self, budget: &mut Budget, parts: &mut Vec<Part>) {
        let placement = self.control.placement();
        let resident_max = self.limits.resident_max() as usize;
        while !budget.is_spent() && self.running.len() + self.parked.len() < resident_max {
            let Some((_, &request)) = self.waiting.first_key_value() else { break };
            match self.admit(request) {
                Head::Waits => break,
                Head::Parks | Head::Fails => {}
                Head::Runs => {
                    let running = self.sequences[&request].running().expect("just admitted");
                    let start = self.control.scheduled(&running.residency);
                    let end = budget
                        .prefill(&placement, &running.place, start)
                        .expect("the budget was not spent");
                    parts.push(Part::new(request, end));
                }
            }
        }
    }

    /// Lets the runner draft for each part that decodes, with what is left of the budget. Drafts take
    /// no page that somebody would have to give up.
    fn plan_drafts(&mut self, budget: &mut Budget, parts: &mut [Part]) {
        let block = self.control.config().block;
        for Part { request, end, drafts } in parts {
            let sequence = self.sequences.get_mut(request).expect("a planned request is known");
            let wanted = sequence.stop.max_tokens - sequence.usage.generated;
            let length = sequence.len();
            let (running, keys) = sequence.running_mut().expect("a planned request runs");
            if *end != length || length <= running.place.prefill {
                continue;
            }
            // The batch answers one token more than the drafts it accepts.
            let most = budget.left().min(wanted.saturating_sub(Tokens::new(1)));
            *drafts = self.runner.draft(*request, keys.tokens(), most);
            assert!(drafts.len() <= most.index(), "{request}: drafts beyond what was asked");
            let residency = &mut running.residency;
            loop {
                let held = residency.pages().len() * block.get() as usize;
                if end.index() + drafts.len() <= held {
                    break;
                }
                if self.control.append_block(residency) == Append::NoRoom {
                    drafts.truncate(held - end.index());
                }
            }
            budget.draft(Tokens::new(drafts.len() as u32));
        }
    }

    /// Asks the connector how far it reaches, and the control plane for slot and pages.
    fn admit(&mut self, request: RequestId) -> Head {
        let sequence = &self.sequences[&request];
        let offer = match sequence.remote {
            Remote::Spent => None,
            Remote::Untried => self.offer(request),
        };
        let sequence = &self.sequences[&request];
        let gated = offer.map(|offer| offer.from);
        let asked = AdmitRequest { request, keys: &sequence.keys, gated };
        match self.control.try_admit(&asked) {
            Err(_) => {
                self.finish(request, FinishReason::Failed(Failure::CheckpointLost));
                Head::Fails
            }
            Ok(Admit::Refused(_)) => Head::Waits,
            Ok(Admit::Admitted(residency, report)) => {
                self.settle_in(request, residency, &report, offer)
            }
        }
    }

    fn offer(&mut self, request: RequestId) -> Option<Offer> {
        let sequence = &self.sequences[&request];
        let from = self.control.probe(&sequence.keys).resumable;
        let to = self.connector.offer(&LoadQuery {
            request,
            domain: sequence.keys.domain(),
            tokens: sequence.keys.tokens(),
            local: from,
            limit: self.control.placement().resumable_cap(sequence.len()),
        })?;
        (to > from).then_some(Offer { from, to })
    }

    /// Waiting or Preempted -> Running or Parked.
    fn settle_in(
        &mut self,
        request: RequestId,
        residency: Residency,
        report: &AdmitReport,
        offer: Option<Offer>,
    ) -> Head {
        self.unlist(request);
        self.issued.admissions += 1;
        let admission = Admission(self.issued.admissions);
        let sequence = self.sequences.get_mut(&request).expect("a waiting request is known");
        self.totals.admit(&sequence.usage, report);
        sequence.usage.admit(report);
        self.outputs.push_back(Output::Admitted { request, report: *report });
        let place = Place {
            prefill: sequence.len(),
            demand: report.demand,
            scope: report.scope,
            last_kept: report.hit.resumable,
            unasked: None,
        };
        let Some(Offer { from, to }) = offer else {
            sequence.run(Running { residency, admission, place });
            self.running.insert(admission, request);
            return Head::Runs;
        };
        self.issued.loads += 1;
        self.totals.loads_started += 1;
        let id = LoadId::new(self.issued.loads);
        let block = sequence.keys.block();
        let pages = |boundary: Boundary| block.blocks_floor(boundary.tokens()).index();
        self.connector.start(&Load {
            id,
            request,
            domain: sequence.keys.domain(),
            tokens: &sequence.keys.tokens()[..to.tokens().index()],
            from,
            to,
            slot: residency.slot(),
            pages: &residency.pages()[pages(from)..pages(to)],
            behind: self.flights.back().map(|flight| flight.id),
        });
        self.outputs.push_back(Output::Parked { request, from, to });
        let load = Loading { id, from, to, stage: LoadStage::Flying };
        let since = self.issued.steps;
        sequence.park(Parked { residency, admission, load, since, place });
        self.parked.insert(id, request);
        Head::Parks
    }

    /// Asks placement about the end of the request's latest forward, once, and files it where it is
    /// to be kept. The slot must still stand there.
    pub(crate) fn ask_placement(&mut self, request: RequestId) {
        let sequence = self.sequences.get_mut(&request).expect("a running request is known");
        let (running, keys) = sequence.running_mut().expect("it runs");
        let place = &mut running.place;
        let Some(at) = place.unasked.take() else { return };
        let kept = self.control.placement().within(place.scope).keep(&Progress {
            at,
            prompt: place.prefill,
            demand: place.demand,
            last_kept: place.last_kept,
            ahead: Ahead::Forward,
        });
        let Some(reason) = kept else { return };
        let boundary = keys.block().boundary_at(at).expect("kept boundaries lie on the grid");
        let key = keys.key_at(boundary).expect("the tokens before a boundary reached are known");
        place.last_kept = boundary;
        match self.control.file(&running.residency, boundary, key, reason) {
            Filed::Pending => sequence.usage.filed += 1,
            Filed::Replaced | Filed::Lost | Filed::Off | Filed::Stale => {}
        }
    }

    /// Drains the operations, makes every part a member, and remembers what the results will need.
    fn assemble(&mut self, parts: &[Part]) -> StepBatch {
        let mut batch = self.spare.pop().unwrap_or_else(StepBatch::empty);
        let mut receipt = self.control.begin_batch(&mut batch.ops);
        batch.id = receipt.batch();
        // Rows of an earlier batch lend their memory.
        let mut lent = std::mem::take(&mut batch.rows);
        batch.rows.reserve(parts.len());
        let mut admissions = Vec::with_capacity(parts.len());
        for &Part { request, end, ref drafts } in parts {
            let sequence = self.sequences.get_mut(&request).expect("a planned request is known");
            let logits =
                if end == sequence.len() { LogitsWanted::Last } else { LogitsWanted::Nothing };
            sequence.rows_out += 1;
            let (running, keys) = sequence.running_mut().expect("a planned request runs");
            let start = self.control.scheduled(&running.residency);
            let drafted = Tokens::new(drafts.len() as u32);
            let blocks = keys.block().blocks_ceil(end + drafted).index();
            let (mut pages, mut tokens) =
                lent.pop().map_or_else(Default::default, |row| (row.pages, row.tokens));
            pages.clear();
            pages.extend_from_slice(&running.residency.pages()[..blocks]);
            tokens.clear();
            tokens.extend_from_slice(&keys.tokens()[start.index()..end.index()]);
            tokens.extend_from_slice(drafts);
            let (slot, drafts) = (running.residency.slot(), drafted.get());
            batch.rows.push(Row { request, slot, pages, start, tokens, drafts, logits });
            self.control.join(&mut receipt, &running.residency, end + drafted);
            // Where a row with drafts ends is known with its result.
            running.place.unasked = (drafts == 0).then_some(end);
            admissions.push(running.admission);
        }
        self.totals.batches += 1;
        let restored = self.restored(&batch.ops);
        self.flights.push_back(Flight { id: batch.id, receipt, admissions, restored });
        batch
    }

    /// The residencies that a batch's restores write: the restore of a parked request rides a batch
    /// that its request has no row in.
    fn restored(&self, ops: &MaintenanceOps) -> Vec<Admission> {
        if ops.restores.is_empty() {
            return Vec::new();
        }
        let written = |slot: SlotId| ops.restores.iter().any(|op| op.slot == slot);
        let residents = self.running.values().chain(self.parked.values());
        residents
            .filter_map(|request| self.sequences[request].resident())
            .filter(|(_, residency)| written(residency.slot()))
            .map(|(admission, _)| admission)
            .collect()
    }

    /// Whether the next batch may touch the residency's slot: always where the backend keeps its
    /// batches in order, else only once every batch in flight that touches it is settled.
    fn may_join(&self, residency: &Residency) -> bool {
        match self.control.config().order {
            BackendOrder::Ordered => true,
            BackendOrder::Unordered => self.control.in_flight(residency) == 0,
        }
    }
}
