//! The demo's results: a table for people, one JSON object for programs.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};
use statepages_store::{Counters, LossReason};

use crate::demo::round::{Round, Served};
use crate::demo::workload::Kind;

/// Everything a run came to.
pub(crate) struct Results {
    /// Rounds in which every request was alone.
    pub(crate) rounds: Vec<Round>,
    /// Rounds with several requests in flight.
    pub(crate) concurrent: Vec<Round>,
    pub(crate) counters: Counters,
    /// The fault that was put in, if any.
    pub(crate) fault: Option<&'static str>,
}

impl Results {
    /// Requests that were compared with another run, alone or in company, and those that were equal.
    pub(crate) fn compared(&self) -> (usize, usize) {
        let rounds = self.rounds.iter().chain(&self.concurrent);
        rounds.map(Round::compared).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Requests of the rounds alone that resumed another number of tokens than their texts allow.
    pub(crate) fn unrealised(&self) -> usize {
        let served = self.rounds.iter().flat_map(|round| &round.served);
        served.filter(|s| s.resumable.is_some_and(|allowed| allowed != s.realised())).count()
    }

    pub(crate) fn to_json(&self) -> Value {
        let alone = self.rounds.iter().map(Round::compared);
        let (requests, identical) = alone.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let fates = self.counters.fates();
        let rounds: Vec<_> = self.rounds.iter().map(round_json).collect();
        let concurrent: Vec<_> = self.concurrent.iter().map(round_json).collect();
        json!({
            "requests": requests,
            "outputs_identical": identical,
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
            }
        }
        let fates = self.counters.fates();
        lines.push(format!(
            "\nCheckpoints: {} kept, {} dropped, {} evicted, {} orphaned",
            fates.kept, fates.dropped, fates.evicted, fates.orphaned
        ));
        if let [cold, .., resumed] = self.rounds.as_slice() {
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
        let (compared, identical) = self.compared();
        let different = compared - identical;
        match self.fault {
            Some(fault) => format!(
                "With fault {fault}: {different} of {compared} outputs differ from cold runs in \
                 another process"
            ),
            None => format!(
                "{identical} of {compared} resumed outputs are bit for bit those of cold runs in \
                 another process"
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

/// Why tokens of a round were computed.
fn losses(round: &Round) -> String {
    let lost: Vec<_> = LossReason::ALL
        .into_iter()
        .filter(|&reason| round.lost(reason) > 0)
        .map(|reason| format!("{} {}", reason.name(), round.lost(reason)))
        .collect();
    format!("  computed in {}: {}", title(round), lost.join(", "))
}
