//! Which residency each row of a batch in flight is of, so that a failed batch is seen to cost the
//! residencies that it carried, and no later ones of the same requests.

use std::collections::BTreeMap;

use statepages_page::{BatchId, RequestId};

/// A residency: the request, and which of its admissions it came from.
type Resident = (RequestId, u64);

/// Rows in flight, and what failed batches have cost within a turn.
#[derive(Debug, Default)]
pub(crate) struct Residents {
    admissions: BTreeMap<RequestId, u64>,
    rows: BTreeMap<BatchId, Vec<Resident>>,
    preempted: Vec<Resident>,
}

impl Residents {
    pub(crate) fn admit(&mut self, request: RequestId) {
        *self.admissions.entry(request).or_default() += 1;
    }

    /// A failed batch has cost a request its present residency.
    pub(crate) fn preempt(&mut self, request: RequestId) {
        let resident = self.resident(request);
        self.preempted.push(resident);
    }

    /// Nothing more is heard of a request.
    pub(crate) fn end(&mut self, request: RequestId) {
        self.admissions.remove(&request);
    }

    /// A batch is in flight after the turn in which it was built. All admissions of a turn come before
    /// its batch.
    pub(crate) fn submitted(&mut self, batch: BatchId, requests: impl Iterator<Item = RequestId>) {
        if !self.rows.contains_key(&batch) {
            let rows = requests.map(|request| self.resident(request)).collect();
            self.rows.insert(batch, rows);
        }
    }

    /// Takes the reports of a turn: batch, whether it failed, and its requests.
    ///
    /// # Panics
    /// Where a residency was lost that no failed batch carried.
    pub(crate) fn reported<'a>(
        &mut self,
        reports: impl Iterator<Item = (BatchId, bool, &'a [RequestId])>,
    ) {
        let mut carried = Vec::new();
        for (batch, failed, requests) in reports {
            // A batch that was reported in the turn in which it was built is not known yet.
            let rows = self.rows.remove(&batch).unwrap_or_else(|| {
                requests.iter().map(|&request| self.resident(request)).collect()
            });
            if failed {
                carried.extend(rows);
            }
        }
        for (request, admission) in self.preempted.drain(..) {
            assert!(
                carried.contains(&(request, admission)),
                "cost: {request} lost its residency {admission}, which no failed batch carried"
            );
        }
    }

    fn resident(&self, request: RequestId) -> Resident {
        (request, self.admissions.get(&request).copied().unwrap_or_default())
    }
}
