//! The world file: word lists and sentence templates, with every word as its token id.

use serde::Deserialize;
use serde_json::Map;

use crate::logbook::CAST;

/// What the file says it is.
const FORMAT: &str = "statepages-mini-world-1";
/// What stands before a word in the vocabulary.
const SPACE: char = '\u{2581}';

/// A world file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The text is no world file.
    #[error("world.json: {0}")]
    Json(#[from] serde_json::Error),
    /// The file is of another format.
    #[error("world.json: format: expected {FORMAT}, got {got}")]
    Format {
        /// The format it names.
        got: String,
    },
    /// A list is too short.
    #[error("world.json: {field}: expected at least {expected} entries, got {got}")]
    Short {
        /// The list.
        field: &'static str,
        /// Fewest entries.
        expected: usize,
        /// Its entries.
        got: usize,
    },
    /// A word is no token of the vocabulary.
    #[error("world.json: {field}: expected words of the vocabulary, got {word}")]
    Word {
        /// Where the word stands.
        field: &'static str,
        /// The word.
        word: String,
    },
    /// A template has a gap that its kind of sentence cannot fill.
    #[error("world.json: templates.{field}: expected gaps of that sentence, got {gap}")]
    Gap {
        /// The template's kind.
        field: &'static str,
        /// The gap.
        gap: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWorld {
    format: String,
    names: Vec<String>,
    adjectives: Vec<String>,
    attributes: Map<String, serde_json::Value>,
    code_first: Vec<String>,
    code_second: Vec<String>,
    berths: Vec<String>,
    places: Vec<String>,
    things: Vec<String>,
    weather: Vec<String>,
    verbs: Vec<String>,
    times: Vec<String>,
    // The words of templates; the templates themselves say which are used.
    #[serde(rename = "words")]
    _words: Vec<String>,
    templates: RawTemplates,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTemplates {
    fact: Vec<String>,
    log: Vec<String>,
    berth: Vec<String>,
    filler: Vec<String>,
    ask_window: [String; 1],
    ask_history: [String; 1],
    ask_across: [String; 1],
    ask_guest: [String; 1],
    pad: [String; 1],
}

/// A gap of a template.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gap {
    Name,
    Attribute,
    Adjective,
    Noun,
    First,
    Second,
    Berth,
    Thing,
    Verb,
    Place,
    Time,
    Weather,
}

impl Gap {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "name" => Self::Name,
            "attr" => Self::Attribute,
            "adj" => Self::Adjective,
            "noun" => Self::Noun,
            "first" => Self::First,
            "second" => Self::Second,
            "berth" => Self::Berth,
            "thing" => Self::Thing,
            "verb" => Self::Verb,
            "place" => Self::Place,
            "time" => Self::Time,
            "weather" => Self::Weather,
            _ => return None,
        })
    }
}

/// A word of a template.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    Token(u32),
    Gap(Gap),
}

pub(crate) type Template = Vec<Word>;

/// The words and sentences of the texts, as token ids.
#[derive(Debug)]
pub struct World {
    pub(crate) names: Vec<u32>,
    pub(crate) adjectives: Vec<u32>,
    pub(crate) attributes: Vec<u32>,
    /// By attribute.
    pub(crate) nouns: Vec<Vec<u32>>,
    pub(crate) first: Vec<u32>,
    pub(crate) second: Vec<u32>,
    pub(crate) berths: Vec<u32>,
    pub(crate) things: Vec<u32>,
    pub(crate) verbs: Vec<u32>,
    pub(crate) places: Vec<u32>,
    pub(crate) times: Vec<u32>,
    pub(crate) weather: Vec<u32>,
    pub(crate) fact: Vec<Template>,
    pub(crate) log: Vec<Template>,
    pub(crate) berth: Vec<Template>,
    pub(crate) filler: Vec<Template>,
    pub(crate) ask_window: Template,
    pub(crate) ask_history: Template,
    pub(crate) ask_across: Template,
    pub(crate) ask_guest: Template,
    pub(crate) pad: Vec<u32>,
    pub(crate) stop: u32,
}

/// Turns words into ids.
struct Reader<F>(F);

impl<F: Fn(&str) -> Option<u32>> Reader<F> {
    fn word(&self, field: &'static str, word: &str) -> Result<u32, WorldError> {
        let is_word = word.chars().all(char::is_alphabetic);
        let token = if is_word { format!("{SPACE}{word}") } else { word.to_owned() };
        (self.0)(&token).ok_or_else(|| WorldError::Word { field, word: word.to_owned() })
    }

    fn list(&self, field: &'static str, words: &[String]) -> Result<Vec<u32>, WorldError> {
        let expected = if field == "names" { CAST } else { 1 };
        if words.len() < expected {
            return Err(WorldError::Short { field, expected, got: words.len() });
        }
        words.iter().map(|word| self.word(field, word)).collect()
    }

    fn template(
        &self,
        field: &'static str,
        text: &str,
        gaps: &[Gap],
    ) -> Result<Template, WorldError> {
        text.split_whitespace()
            .map(|word| match word.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
                None => self.word(field, word).map(Word::Token),
                Some(gap) => match Gap::parse(gap).filter(|gap| gaps.contains(gap)) {
                    Some(gap) => Ok(Word::Gap(gap)),
                    None => Err(WorldError::Gap { field, gap: gap.to_owned() }),
                },
            })
            .collect()
    }

    fn templates(
        &self,
        field: &'static str,
        texts: &[String],
        gaps: &[Gap],
    ) -> Result<Vec<Template>, WorldError> {
        if texts.is_empty() {
            return Err(WorldError::Short { field, expected: 1, got: 0 });
        }
        texts.iter().map(|text| self.template(field, text, gaps)).collect()
    }
}

impl World {
    /// Reads a world file. `token` gives the id of a token of the vocabulary; a word's token has
    /// U+2581 before it, a punctuation mark's has not.
    pub fn parse(text: &str, token: impl Fn(&str) -> Option<u32>) -> Result<Self, WorldError> {
        use Gap::{
            Adjective, Attribute, Berth, First, Name, Noun, Place, Second, Thing, Time, Verb,
            Weather,
        };
        let raw: RawWorld = serde_json::from_str(text)?;
        if raw.format != FORMAT {
            return Err(WorldError::Format { got: raw.format });
        }
        let reader = Reader(token);
        let (mut attributes, mut nouns) = (Vec::new(), Vec::new());
        for (attribute, list) in raw.attributes {
            attributes.push(reader.word("attributes", &attribute)?);
            let list: Vec<String> = serde_json::from_value(list)?;
            nouns.push(reader.list("attributes", &list)?);
        }
        if attributes.is_empty() {
            return Err(WorldError::Short { field: "attributes", expected: 1, got: 0 });
        }
        let templates = &raw.templates;
        let ask = |field, text: &[String; 1], gaps| reader.template(field, &text[0], gaps);
        let pad = ask("pad", &templates.pad, &[])?;
        let pad = pad.into_iter().filter_map(|word| match word {
            Word::Token(id) => Some(id),
            Word::Gap(_) => None,
        });
        let pad: Vec<u32> = pad.collect();
        if pad.is_empty() {
            return Err(WorldError::Short { field: "pad", expected: 1, got: 0 });
        }
        Ok(Self {
            names: reader.list("names", &raw.names)?,
            adjectives: reader.list("adjectives", &raw.adjectives)?,
            attributes,
            nouns,
            first: reader.list("code_first", &raw.code_first)?,
            second: reader.list("code_second", &raw.code_second)?,
            berths: reader.list("berths", &raw.berths)?,
            things: reader.list("things", &raw.things)?,
            verbs: reader.list("verbs", &raw.verbs)?,
            places: reader.list("places", &raw.places)?,
            times: reader.list("times", &raw.times)?,
            weather: reader.list("weather", &raw.weather)?,
            fact: reader.templates("fact", &templates.fact, &[Name, Attribute, Adjective, Noun])?,
            log: reader.templates("log", &templates.log, &[Name, First, Second])?,
            berth: reader.templates("berth", &templates.berth, &[Name, Berth, Time])?,
            filler: reader.templates(
                "filler",
                &templates.filler,
                &[Name, Thing, Verb, Place, Time, Weather],
            )?,
            ask_window: ask("ask_window", &templates.ask_window, &[Name])?,
            ask_history: ask("ask_history", &templates.ask_history, &[Attribute, Name])?,
            ask_across: ask("ask_across", &templates.ask_across, &[Attribute, Berth])?,
            ask_guest: ask("ask_guest", &templates.ask_guest, &[Berth])?,
            pad,
            stop: reader.word("templates", ".")?,
        })
    }

    /// The token that ends a sentence.
    pub fn stop(&self) -> u32 {
        self.stop
    }
}
