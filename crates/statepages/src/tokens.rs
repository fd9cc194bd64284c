//! Texts and token ids: the built-in model's tokenizer, that of a model's directory, or bytes.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;
use statepages_mini::World;
use statepages_weights::read_text;

use crate::args::EngineArgs;

/// Ends a text of byte tokens.
const END_OF_BYTES: u32 = 256;

/// How a model's texts become ids.
pub(crate) enum Tokenizer {
    /// Ids 0-255 are bytes.
    Bytes,
    /// The tokens of a `tokenizer.json`.
    Tokens(Box<tokenizers::Tokenizer>),
}

/// What a model's texts are made of.
pub(crate) struct Texts {
    pub(crate) tokenizer: Tokenizer,
    /// Each ends a text; `generate` stops on them.
    pub(crate) ends: Vec<u32>,
    /// The logbooks that the model was trained on, where it is one that was.
    pub(crate) world: Option<World>,
}

/// `config.json` as far as texts go.
#[derive(Deserialize)]
struct Config {
    vocab_size: u32,
    /// An id, a list of such, or none.
    #[serde(default)]
    eos_token_id: Value,
}

impl Config {
    /// The ids that end a text.
    fn ends(&self) -> Result<Vec<u32>> {
        let listed = match &self.eos_token_id {
            Value::Null => &[][..],
            Value::Array(ids) => ids,
            id => std::slice::from_ref(id),
        };
        let id = |id: &Value| {
            let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
            number.filter(|&id| id < self.vocab_size).ok_or_else(|| {
                let vocab = self.vocab_size;
                anyhow!(
                    "config.json: eos_token_id: expected ids below vocab_size {vocab}, got {id}"
                )
            })
        };
        listed.iter().map(id).collect()
    }
}

impl Texts {
    /// Those of the model that the flags name.
    pub(crate) fn of(args: &EngineArgs) -> Result<Self> {
        match (&args.model, args.weights_seed) {
            (Some(directory), _) => Self::of_directory(directory)
                .with_context(|| format!("--model: {}", directory.display())),
            (None, Some(_)) => Ok(Self::bytes()),
            (None, None) => Self::built_in(),
        }
    }

    /// Those of dsv4-mini.
    pub(crate) fn built_in() -> Result<Self> {
        let (config, tokenizer) = (statepages_mini::CONFIG, statepages_mini::TOKENIZER);
        Self::of_tokenizer(config, tokenizer, Some(statepages_mini::WORLD))
    }

    fn bytes() -> Self {
        Self { tokenizer: Tokenizer::Bytes, ends: vec![END_OF_BYTES], world: None }
    }

    fn of_directory(directory: &Path) -> Result<Self> {
        let read = |name: &str| {
            read_text(&directory.join(name)).with_context(|| format!("cannot read {name}"))
        };
        let config = read("config.json")?;
        if !directory.join("tokenizer.json").exists() {
            let vocab = parse(&config)?.vocab_size;
            if vocab <= END_OF_BYTES {
                let expected = END_OF_BYTES + 1;
                bail!("vocab_size: expected at least {expected} for byte tokens, got {vocab}");
            }
            return Ok(Self::bytes());
        }
        let world =
            directory.join("world.json").exists().then(|| read("world.json")).transpose()?;
        Self::of_tokenizer(&config, &read("tokenizer.json")?, world.as_deref())
    }

    fn of_tokenizer(config: &str, tokenizer: &str, world: Option<&str>) -> Result<Self> {
        let config = parse(config)?;
        let tokenizer = tokenizers::Tokenizer::from_bytes(tokenizer)
            .map_err(|error| anyhow!("tokenizer.json: {error}"))?;
        let ids = tokenizer.get_vocab(true).into_values();
        let count = ids.max().map_or(0, |id| u64::from(id) + 1);
        let vocab = config.vocab_size;
        if count == 0 || count > u64::from(vocab) {
            bail!("tokenizer.json: expected ids below vocab_size {vocab}, got {count} ids");
        }
        let world = world
            .map(|text| World::parse(text, |token| tokenizer.token_to_id(token)))
            .transpose()?;
        let ends = config.ends()?;
        Ok(Self { tokenizer: Tokenizer::Tokens(Box::new(tokenizer)), ends, world })
    }
}

fn parse(config: &str) -> Result<Config> {
    serde_json::from_str(config).context("config.json")
}

impl Tokenizer {
    /// The ids of a text.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Tokens(tokenizer) => match tokenizer.encode(text, false) {
                Ok(encoding) => Ok(encoding.get_ids().to_vec()),
                Err(error) => Err(anyhow!("the tokenizer refuses the text: {error}")),
            },
        }
    }

    /// The id sequences that a text appears as behind other text: a tokenizer may join it to what
    /// stands before, so it is encoded alone, behind a mark and behind a letter.
    pub(crate) fn appearances(&self, text: &str) -> Result<Vec<Vec<u32>>> {
        let mut all = vec![self.encode(text)?];
        for before in [":", "a"] {
            let (head, whole) = (self.encode(before)?, self.encode(&format!("{before}{text}"))?);
            if let Some(tail) = whole.strip_prefix(head.as_slice())
                && !tail.is_empty()
                && !all.iter().any(|one| one == tail)
            {
                all.push(tail.to_vec());
            }
        }
        Ok(all)
    }

    /// The text of ids. Bytes that are no UTF-8 become replacement characters; ids that are no bytes are
    /// shown by number where tokens are bytes.
    pub(crate) fn decode(&self, ids: &[u32]) -> Result<String> {
        match self {
            Self::Bytes => Ok(decode_bytes(ids)),
            Self::Tokens(tokenizer) => tokenizer
                .decode(ids, true)
                .map_err(|error| anyhow!("the tokenizer refuses ids: {error}")),
        }
    }
}

fn decode_bytes(ids: &[u32]) -> String {
    let mut text = String::new();
    let mut bytes = Vec::new();
    for &id in ids {
        if let Ok(byte) = u8::try_from(id) {
            bytes.push(byte);
        } else {
            text.push_str(&String::from_utf8_lossy(&bytes));
            bytes.clear();
            write!(text, "<{id}>").expect("a string takes any text");
        }
    }
    text.push_str(&String::from_utf8_lossy(&bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mini() -> Texts {
        Texts::built_in().unwrap()
    }

    #[test]
    fn text_survives_the_round_trip() {
        for tokenizer in [Tokenizer::Bytes, mini().tokenizer] {
            for text in ["", "plain", "gr\u{fc}n \u{1f600}", "Q: What is the hat of Ada? A:"] {
                let ids = tokenizer.encode(text).unwrap();
                assert_eq!(tokenizer.decode(&ids).unwrap(), text);
            }
        }
        let bytes = Tokenizer::Bytes;
        assert_eq!(bytes.decode(&[104, 105, END_OF_BYTES, 33]).unwrap(), "hi<256>!");
    }

    #[test]
    fn known_words_are_one_token_each_and_marks_stop_a_text_of_words() {
        let texts = mini();
        let ids = texts.tokenizer.encode("Ada logs amber alpha.").unwrap();
        assert_eq!(ids.len(), 5);
        assert_eq!(ids[4], texts.world.unwrap().stop());
        let stops = texts.tokenizer.appearances(".").unwrap();
        assert!(stops.contains(&vec![ids[4]]), "{stops:?}");
        assert_eq!(Tokenizer::Bytes.appearances("ab").unwrap(), [[97, 98]]);
    }

    #[test]
    fn a_tokenizer_that_does_not_fit_its_model_is_refused() {
        let small = statepages_mini::CONFIG.replace("648", "600");
        let refused = |config: &str, tokenizer: &str| {
            let error = Texts::of_tokenizer(config, tokenizer, None).err().expect("refused");
            format!("{error:#}")
        };
        let error = refused(&small, statepages_mini::TOKENIZER);
        assert!(error.contains("600") && error.contains("648"), "{error}");
        assert!(refused(statepages_mini::CONFIG, "{}").contains("tokenizer.json"));
        assert!(refused("{}", statepages_mini::TOKENIZER).contains("vocab_size"));
        for (id, got) in [("-1", "got -1"), ("[0, 648]", "got 648"), (r#""end""#, r#"got "end""#)] {
            let config = format!(r#"{{"vocab_size": 648, "eos_token_id": {id}}}"#);
            let error = refused(&config, statepages_mini::TOKENIZER);
            assert!(error.contains("eos_token_id") && error.contains(got), "{error}");
        }
    }
}
