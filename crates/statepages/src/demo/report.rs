//! The demo's results: a table for people, one JSON object for programs.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};
use statepages_mini::Third;
use statepages_store::{Counters, LossReason};

use crate::demo::round::{Round, Served};
use crate::demo::workload::Kind;

/// What outputs were compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reference {
    /// Logits and ids of cold runs in another process.
    ColdArm,
    /// Recorded ids.
    Record,
}

/// Everything a run came to.
pub(crate) struct Results {
    pub(crate) reference: Reference,
    /// Rounds in which every request was alone.
    pub(crate) rounds: Vec<Round>,
    /// Rounds with several requests in flight.
    pub(crate) concurrent: Vec<Round>,
    pub(crate) counters: Counters,
    /// The fault that was put in, if any.
    pub(crate) fault: Option<&'static str>,
}

/// Share of resumed outputs that must differ for the comparison to count as seeing a fault.
const FAULT_SEEN: f64 = 0.9;

impl Results {
    fn all(&self) -> impl Iterator<Item = &Round> {
        self.rounds.iter().chain(&self.concurrent)
    }

    /// Compared requests of which `count` is so, and those of them that were equal.
    fn verdicts(&self, count: impl Fn(&Served) -> bool) -> (usize, usize) {
        let served = self.all().flat_map(|round| &round.served).filter(|served| count(served));
        let verdicts: Vec<bool> = served.filter_map(|served| served.identical).collect();
        (verdicts.len(), verdicts.iter().filter(|&&equal| equal).count())
    }

    /// Requests that resumed less than their texts and the placement rules allow.
    fn short(&self) -> usize {
        let served = self.all().flat_map(|round| &round.served);
        served.filter(|s| s.resumable.is_some_and(|allowed| allowed > s.realised())).count()
    }

    /// Whether a checkpoint was lost for want of room, so that a request may resume less.
    fn lost_room(&self) -> bool {
        let fates = self.counters.fates();
        fates.dropped + fates.evicted + fates.orphaned > 0
    }

    /// Without a fault everything compared must be equal, and where the pool had room every token
    /// that may be resumed must be. With a fault the comparison must have seen it.
    pub(crate) fn is_good(&self) -> bool {
        if self.fault.is_some() {
            let (resumed, equal) = self.verdicts(|served| served.realised() > 0);
            return resumed > 0 && (resumed - equal) as f64 >= FAULT_SEEN * resumed as f64;
        }
        let (compared, equal) = self.verdicts(|_| true);
        compared == equal && (self.short() == 0 || self.lost_room())
    }

    /// What a reader has to know beside the results.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        if self.fault.is_none() {
            for round in self.all() {
                let different = round.served.iter().enumerate();
                let different: Vec<_> = different
                    .filter(|(_, served)| served.identical == Some(false))
                    .map(|(index, _)| index.to_string())
                    .collect();
                if !different.is_empty() {
                    complaints.push(format!(
                        "round {}: other outputs than expected for requests {}",
                        round.name,
                        different.join(", ")
                    ));
                }
            }
        } else if !self.is_good() {
            let (resumed, _) = self.verdicts(|served| served.realised() > 0);
            complaints.push(if resumed == 0 {
                "nothing was resumed, so that the fault changed nothing: --pages and \
                 --state-checkpoint-interval-tokens have to leave checkpoints"
                    .to_owned()
            } else {
                "the comparison has not seen the fault".to_owned()
            });
        }
        let short = self.short();
        if short > 0 && self.fault.is_none() {
            let why = if self.lost_room() {
                "the pool (--pages) had no room for every checkpoint"
            } else {
                "the pool had room for every checkpoint"
            };
            complaints.push(format!("{short} requests resumed less than their texts allow: {why}"));
        }
        complaints
    }

    pub(crate) fn to_json(&self) -> Value {
        let (requests, identical) = self.verdicts(|_| true);
        let (resumed, _) = self.verdicts(|served| served.realised() > 0);
        let fates = self.counters.fates();
        let rounds: Vec<_> = self.rounds.iter().map(round_json).collect();
        let concurrent: Vec<_> = self.concurrent.iter().map(round_json).collect();
        json!({
            "requests": requests,
            "outputs_identical": identical,
            "requests_resumed": resumed,
            "requests_short": self.short(),
            "ok": self.is_good(),
            "fault": self.fault,
            "rounds": rounds,
            "concurrent": concurrent,
            "checkpoints": {
                "kept": fates.kept,
                "dropped": fates.dropped,
                "evicted": fates.evicted,
                "orphaned": fates.orphaned,
            },
        })
    }

    pub(crate) fn to_text(&self) -> String {
        let mut lines = Vec::new();
        for (title, rounds) in [
            ("Each request alone (tokens are sums, times are medians)", &self.rounds),
            ("Several requests in flight", &self.concurrent),
        ] {
            if !rounds.is_empty() {
                lines.push(format!("\n{title}\n{}", table(rounds)));
                lines.extend(rounds.iter().map(losses));
                lines.extend(rounds.iter().filter_map(answers));
            }
        }
        let fates = self.counters.fates();
        lines.push(format!(
            "\nCheckpoints: {} kept, {} dropped, {} evicted, {} orphaned",
            fates.kept, fates.dropped, fates.evicted, fates.orphaned
        ));
        if let [cold, .., resumed] = self.rounds.as_slice()
            && resumed.served.iter().all(|served| served.realised() > 0)
        {
            let (cold, resumed) = (cold.p50_ms(|s| s.ttft), resumed.p50_ms(|s| s.ttft));
            lines.push(format!(
                "Time to first token, median: {cold:.0} ms cold, {resumed:.1} ms resumed ({:.1} \
                 times less)",
                cold / resumed
            ));
        }
        lines.push(self.verdict());
        lines.join("\n")
    }

    fn verdict(&self) -> String {
        let (compared, equal) = self.verdicts(|_| true);
        let (resumed, resumed_equal) = self.verdicts(|served| served.realised() > 0);
        match (self.fault, self.reference) {
            (Some(fault), _) => format!(
                "With fault {fault}: {} of {resumed} resumed outputs differ from cold runs in another \
                 process",
                resumed - resumed_equal
            ),
            (None, Reference::ColdArm) => format!(
                "{equal} of {compared} outputs, {resumed} of them resumed, are bit for bit those of \
                 cold runs in another process"
            ),
            (None, Reference::Record) => format!(
                "{equal} of {compared} outputs, {resumed} of them resumed, have the recorded token ids"
            ),
        }
    }
}

fn round_json(round: &Round) -> Value {
    let lost = LossReason::ALL.into_iter();
    let lost: serde_json::Map<_, _> =
        lost.map(|reason| (reason.name().to_owned(), round.lost(reason).into())).collect();
    let (compared, identical) = round.compared();
    json!({
        "name": round.name,
        "concurrency": round.concurrency,
        "requests": round.served.len(),
        "compared": compared,
        "outputs_identical": identical,
        "prompt_tokens": round.sum(|s| s.prompt.len()),
        "computed_tokens": round.sum(|s| s.computed),
        "kv_hit_tokens": round.sum(|s| s.report.hit.kv.tokens().index()),
        "resumable_tokens": round.sum(|s| s.resumable.unwrap_or(s.realised())),
        "realised_tokens": round.sum(Served::realised),
        "lost_tokens": lost,
        "correct": tally(round, |(right, _)| right),
        "questions": tally(round, |(_, asked)| asked),
        "ttft_ms_p50": round.p50_ms(|s| s.ttft),
        "queue_ms_p50": round.p50_ms(|s| s.queue),
        "prompts_sha256": round.prompts_sha256(),
        "outputs_sha256": round.outputs_sha256(),
    })
}

fn table(rounds: &[Round]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header([
        "round",
        "kind",
        "prompt",
        "computed",
        "KV hit",
        "resumed",
        "allowed",
        "queue ms",
        "TTFT ms",
        "identical",
    ]);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for round in rounds {
        for kind in Kind::ALL {
            let served: Vec<_> =
                round.served.iter().filter(|served| served.kind == kind).cloned().collect();
            if !served.is_empty() {
                let part =
                    Round { name: round.name.clone(), concurrency: round.concurrency, served };
                table.add_row(row(&part, kind.name()));
            }
        }
        table.add_row(row(round, "all"));
    }
    table
}

fn row(round: &Round, kind: &str) -> Vec<String> {
    let (compared, identical) = round.compared();
    vec![
        title(round),
        format!("{} {kind}", round.served.len()),
        round.sum(|s| s.prompt.len()).to_string(),
        round.sum(|s| s.computed).to_string(),
        round.sum(|s| s.report.hit.kv.tokens().index()).to_string(),
        round.sum(Served::realised).to_string(),
        round.sum(|s| s.resumable.unwrap_or(s.realised())).to_string(),
        format!("{:.1}", round.p50_ms(|s| s.queue)),
        format!("{:.1}", round.p50_ms(|s| s.ttft)),
        if compared == 0 { "-".to_owned() } else { format!("{identical}/{compared}") },
    ]
}

fn title(round: &Round) -> String {
    match round.concurrency {
        1 => round.name.clone(),
        n => format!("{} x{n}", round.name.trim_end_matches("_concurrent")),
    }
}

/// Of all questions of a round and of each third; null where nothing was asked.
fn tally(round: &Round, of: impl Fn((usize, usize)) -> usize) -> Value {
    let all = round.answers(None);
    if all.1 == 0 {
        return Value::Null;
    }
    let thirds = Third::ALL.map(|third| (third.name(), of(round.answers(Some(third)))));
    let counts = [("all", of(all))].into_iter().chain(thirds);
    Value::Object(counts.map(|(name, count)| (name.to_owned(), count.into())).collect())
}

/// How the questions of a round were answered, if there were any.
fn answers(round: &Round) -> Option<String> {
    let (right, asked) = round.answers(None);
    let thirds = Third::ALL.map(|third| {
        let (right, asked) = round.answers(Some(third));
        format!("{} {right}/{asked}", third.name())
    });
    let line =
        || format!("  right answers in {}: {right}/{asked} ({})", title(round), thirds.join(", "));
    (asked > 0).then(line)
}

/// Why tokens of a round were computed.
fn losses(round: &Round) -> String {
    let lost: Vec<_> = LossReason::ALL
        .into_iter()
        .filter(|&reason| round.lost(reason) > 0)
        .map(|reason| format!("{} {}", reason.name(), round.lost(reason)))
        .collect();
    format!("  computed in {}: {}", title(round), lost.join(", "))
}
