//! Reads the command line, and refuses flags that were given and that nothing would read.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};

use crate::args::{Bench, BenchCopyArgs, BenchDevice, Cli, Command, DemoArgs, Fault};
use crate::replay_args::{OrderName, ReplayArgs, TimeName, WorkloadName};

/// Why a run cannot be, where its flags alone are the reason: an error, or the context of one. It ends
/// the process as flags do that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct FlagError(pub(crate) String);

/// What may be read, and when.
struct Rule {
    flag: &'static str,
    applies: bool,
    /// Beside what the flag means something.
    beside: &'static str,
}

/// The command line of this process.
pub(crate) fn read() -> Result<Cli, clap::Error> {
    parse(std::env::args_os())
}

fn parse<T>(words: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error>
where
    T: Into<std::ffi::OsString> + Clone,
{
    let matches = command().try_get_matches_from(words)?;
    let cli = Cli::from_arg_matches(&matches)?;
    let (leaf, rules) = match &cli.command {
        Some(Command::Demo(args)) => (leaf(&matches), demo(args)),
        Some(Command::Replay(args)) => (leaf(&matches), replay(args)),
        Some(Command::Bench(Bench::Copy(args))) => (leaf(&matches), bench_copy(args)),
        _ => return Ok(cli),
    };
    let given =
        |flag: &str| leaf.value_source(&flag.replace('-', "_")) == Some(ValueSource::CommandLine);
    match rules.iter().find(|rule| !rule.applies && given(rule.flag)) {
        None => Ok(cli),
        Some(Rule { flag, beside, .. }) => {
            let what = format!("the argument '--{flag}' is read only with {beside}");
            Err(command().error(ErrorKind::ArgumentConflict, what))
        }
    }
}

/// Flags and their help. A negative number is a value, to be refused for what it is.
fn command() -> clap::Command {
    fn negatives(command: clap::Command) -> clap::Command {
        let values = |arg: clap::Arg| {
            let takes = arg.get_action().takes_values();
            if takes { arg.allow_negative_numbers(true) } else { arg }
        };
        command.mut_args(values).mut_subcommands(negatives)
    }
    negatives(Cli::command())
}

/// The matches of the innermost subcommand.
fn leaf(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| leaf(inner))
}

fn demo(args: &DemoArgs) -> Vec<Rule> {
    let free = args.fault != Some(Fault::WrongBoundary);
    ["policy", "state-checkpoint-interval-tokens"]
        .map(|flag| Rule { flag, applies: free, beside: "another --fault than wrong-boundary" })
        .into()
}

fn replay(args: &ReplayArgs) -> Vec<Rule> {
    use WorkloadName::{Distinct, Gsm8k64, Gsm8k64Fresh, Jsonl, Lmcache, Mooncake, Shared};
    let sends = |any: &[WorkloadName]| args.workload.iter().any(|name| any.contains(name));
    let rule = |flag, any: &[WorkloadName], beside| Rule { flag, applies: sends(any), beside };
    let seeded = sends(&[Gsm8k64Fresh, Distinct, Shared]) || args.order == OrderName::Shuffled;
    let timed = args.time == TimeName::Trace;
    let served = args.policy.iter().any(|name| name.policy().is_some());
    let serving = |flag| Rule { flag, applies: served, beside: "another --policy than opt" };
    vec![
        serving("max-batched-tokens"),
        serving("state-checkpoint-interval-tokens"),
        serving("passes"),
        serving("time"),
        serving("concurrency"),
        serving("batch-us"),
        serving("tokens-per-s"),
        rule(
            "data",
            &[Gsm8k64, Gsm8k64Fresh, Mooncake, Lmcache, Jsonl],
            "a workload that is not made up",
        ),
        rule("file", &[Mooncake, Lmcache, Jsonl], "--workload jsonl, mooncake or lmcache"),
        rule(
            "tokenizer",
            &[Gsm8k64, Gsm8k64Fresh, Lmcache, Jsonl],
            "--workload gsm8k64, gsm8k64-fresh, lmcache or jsonl",
        ),
        rule("sessions", &[Lmcache], "--workload lmcache"),
        rule("prompts", &[Distinct, Shared], "--workload distinct or shared"),
        rule("prompt-tokens", &[Distinct], "--workload distinct"),
        rule("prefixes", &[Shared], "--workload shared"),
        rule("prefix-tokens", &[Shared], "--workload shared"),
        rule("tail-tokens", &[Shared], "--workload shared"),
        Rule {
            flag: "seed",
            applies: seeded,
            beside: "--order shuffled or --workload gsm8k64-fresh, distinct or shared",
        },
        Rule { flag: "concurrency", applies: !timed, beside: "--time concurrency" },
        Rule { flag: "batch-us", applies: timed, beside: "--time trace" },
        Rule { flag: "tokens-per-s", applies: timed, beside: "--time trace" },
    ]
}

fn bench_copy(args: &BenchCopyArgs) -> Vec<Rule> {
    let gpu = args.device != BenchDevice::Cpu;
    let rule = |flag| Rule { flag, applies: gpu, beside: "--device cuda:N or hip:N" };
    ["passing", "shape", "kernels"].map(rule).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(words: &str) -> String {
        let words = std::iter::once("statepages").chain(words.split_whitespace());
        let error = parse(words).expect_err("refused");
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    #[test]
    fn flags_that_nothing_reads_are_refused() {
        for (words, flag, beside) in [
            ("replay --workload distinct --sessions 3", "--sessions", "lmcache"),
            ("replay --workload shared --prompt-tokens 9", "--prompt-tokens", "distinct"),
            ("replay --workload distinct --batch-us 9", "--batch-us", "--time trace"),
            ("replay --workload mooncake --time trace --concurrency 2", "--concurrency", "--time"),
            ("replay --workload distinct --policy opt --concurrency 4", "--concurrency", "opt"),
            ("demo --fault wrong-boundary --policy reference", "--policy", "wrong-boundary"),
            ("bench copy --passing upload", "--passing", "cuda:N"),
        ] {
            let error = refused(words);
            assert!(error.contains(flag) && error.contains(beside), "{error}");
        }
        for words in [
            "replay --workload distinct,lmcache --sessions 3 --prompts 4",
            "replay --workload distinct --policy opt,lru --passes mixed --concurrency 4",
            "replay --workload mooncake --time trace --batch-us 9 --order shuffled --seed 4",
            "demo --fault skip-restore --policy reference",
            "bench copy --device cuda:0 --passing upload",
        ] {
            let words = std::iter::once("statepages").chain(words.split_whitespace());
            assert!(parse(words).is_ok());
        }
    }

    /// Every rule's flag is one of its command's: a renamed flag would be let through.
    #[test]
    fn rules_name_flags() {
        for words in ["demo", "replay --workload distinct", "bench copy"] {
            let words = std::iter::once("statepages").chain(words.split_whitespace());
            let cli = parse(words).expect("these flags go together");
            let (path, rules): (&[&str], _) = match &cli.command {
                Some(Command::Demo(args)) => (&["demo"], demo(args)),
                Some(Command::Replay(args)) => (&["replay"], replay(args)),
                Some(Command::Bench(Bench::Copy(args))) => (&["bench", "copy"], bench_copy(args)),
                other => unreachable!("{other:?} has no rules"),
            };
            let root = command();
            let of = path.iter().fold(&root, |at, name| at.find_subcommand(name).expect("known"));
            for Rule { flag, .. } in rules {
                let known =
                    of.get_arguments().any(|arg| arg.get_id() == flag.replace('-', "_").as_str());
                assert!(known, "--{flag}");
            }
        }
    }

    #[test]
    fn negative_numbers_are_refused_as_values() {
        for words in ["demo --pages -4", "geometry --model mini --block-size -1", "sim --seed -2"] {
            let error = refused(words);
            assert!(error.contains("invalid value") && error.contains('-'), "{error}");
        }
    }
}
