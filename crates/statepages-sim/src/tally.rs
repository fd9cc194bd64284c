//! How often each fault met each state of a record and of a request.

use std::fmt::Write as _;

/// Something that goes wrong, or that is hard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A client called a request off.
    Abort,
    /// The cache was emptied.
    Reset,
    /// Requests crossed one rung together.
    Burst,
    /// A batch's forward failed.
    ForwardFailed,
    /// A batch's copies were not done at all.
    CopyFailed,
    /// A batch's copies broke off in the middle.
    CopyTorn,
    /// A younger batch took effect before an older one.
    Reordered,
    /// A batch was built before the results of the one before it.
    BuiltAhead,
    /// A turn of the loop had nothing to submit.
    EmptyTick,
    /// A resident request gave its pages up for another.
    NoPage,
    /// A remote load failed.
    LoadFailed,
    /// A remote load was called off: late, or its request had ended.
    LoadCancelled,
    /// A remote load completed again, or too late for anybody.
    LoadRepeated,
    /// A remote load was lost: it ends for nobody.
    LoadLost,
    /// A draft was not the request's next token.
    DraftRejected,
    /// A block was published under the key of another.
    KeyCollision,
    /// A block was published that another page had held.
    DuplicateBlock,
    /// The pool grew.
    Extend,
    /// The highest page was asked for, and given or not.
    Retire,
}

impl Fault {
    /// All of them, in order.
    pub const ALL: [Self; 19] = [
        Self::Abort,
        Self::Reset,
        Self::Burst,
        Self::ForwardFailed,
        Self::CopyFailed,
        Self::CopyTorn,
        Self::Reordered,
        Self::BuiltAhead,
        Self::EmptyTick,
        Self::NoPage,
        Self::LoadFailed,
        Self::LoadCancelled,
        Self::LoadRepeated,
        Self::LoadLost,
        Self::DraftRejected,
        Self::KeyCollision,
        Self::DuplicateBlock,
        Self::Extend,
        Self::Retire,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Reset => "reset",
            Self::Burst => "burst",
            Self::ForwardFailed => "forward_failed",
            Self::CopyFailed => "copy_failed",
            Self::CopyTorn => "copy_torn",
            Self::Reordered => "reordered",
            Self::BuiltAhead => "built_ahead",
            Self::EmptyTick => "empty_tick",
            Self::NoPage => "no_page",
            Self::LoadFailed => "load_failed",
            Self::LoadCancelled => "load_cancelled",
            Self::LoadRepeated => "load_repeated",
            Self::LoadLost => "load_lost",
            Self::DraftRejected => "draft_rejected",
            Self::KeyCollision => "key_collision",
            Self::DuplicateBlock => "duplicate_block",
            Self::Extend => "extend",
            Self::Retire => "retire",
        }
    }
}

/// A state that a fault can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// A request that waits for its first admission.
    Waiting,
    /// A request whose remote load is under way.
    Parked,
    /// A request whose prompt is not computed.
    Prefilling,
    /// A request that generates.
    Decoding,
    /// A request that gave its place up.
    Preempted,
    /// A boundary that is filed and not stored.
    Pending,
    /// A record that is being written.
    Copying,
    /// A record that nobody reads.
    Ready,
    /// A record that a restore reads.
    Pinned,
    /// A record that is gone but for a reader or writer.
    Evicting,
    /// A restore that no batch has carried.
    QueuedRestore,
}

impl Met {
    /// All of them, in order.
    pub const ALL: [Self; 11] = [
        Self::Waiting,
        Self::Parked,
        Self::Prefilling,
        Self::Decoding,
        Self::Preempted,
        Self::Pending,
        Self::Copying,
        Self::Ready,
        Self::Pinned,
        Self::Evicting,
        Self::QueuedRestore,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Parked => "parked",
            Self::Prefilling => "prefilling",
            Self::Decoding => "decoding",
            Self::Preempted => "preempted",
            Self::Pending => "pending",
            Self::Copying => "copying",
            Self::Ready => "ready",
            Self::Pinned => "pinned",
            Self::Evicting => "evicting",
            Self::QueuedRestore => "queued_restore",
        }
    }
}

/// Counts of meetings.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    counts: [[u64; Met::ALL.len()]; Fault::ALL.len()],
}

/// Meetings that a standard run needs of each pair of fault and state.
pub const MEETINGS_MIN: u64 = 50;

impl Tally {
    pub(crate) fn meet(&mut self, fault: Fault, met: impl IntoIterator<Item = Met>) {
        for met in met {
            self.counts[fault as usize][met as usize] += 1;
        }
    }

    /// How often a fault met a state.
    pub const fn get(&self, fault: Fault, met: Met) -> u64 {
        self.counts[fault as usize][met as usize]
    }

    /// Adds another run's meetings.
    pub fn add(&mut self, other: &Self) {
        for (row, more) in self.counts.iter_mut().zip(&other.counts) {
            for (count, more) in row.iter_mut().zip(more) {
                *count += more;
            }
        }
    }

    /// Pairs that met too rarely.
    pub fn rare(&self) -> Vec<(Fault, Met, u64)> {
        let pairs = Fault::ALL.iter().flat_map(|&fault| Met::ALL.map(|met| (fault, met)));
        pairs
            .map(|(fault, met)| (fault, met, self.get(fault, met)))
            .filter(|&(_, _, count)| count < MEETINGS_MIN)
            .collect()
    }

    /// The counts as a table.
    pub fn table(&self) -> String {
        let mut text = format!("{:15}", "");
        for met in Met::ALL {
            write!(text, " {:>14}", met.name()).expect("a string takes all text");
        }
        text.push('\n');
        for fault in Fault::ALL {
            write!(text, "{:15}", fault.name()).expect("a string takes all text");
            for met in Met::ALL {
                write!(text, " {:>14}", self.get(fault, met)).expect("a string takes all text");
            }
            text.push('\n');
        }
        text
    }
}
